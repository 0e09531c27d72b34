"""PaddlePaddle's launcher (`paddle.distributed.launch`, Fluid's manual), for those who switch."""

from __future__ import annotations

from tf_config.address import Address
from tf_config.cluster import ClusterSpec, Task, TFConfig
from tf_config.environments.environment import Variables
from tf_config.errors import ClusterConfigError, shown


def read(variables: Variables) -> TFConfig:
    """Returns the cluster of trainers and parameter servers, and which of them this is."""
    jobs = {"worker": _endpoints(variables.text("PADDLE_TRAINER_ENDPOINTS"))}
    servers = variables.find("PADDLE_PSERVERS_IP_PORT_LIST")
    if servers is not None:
        jobs["ps"] = _endpoints(servers)
    role = variables.find("TRAINING_ROLE") or "TRAINER"
    if role == "TRAINER":
        task = Task("worker", variables.number("PADDLE_TRAINER_ID"))
    elif role == "PSERVER":
        own = f"{variables.text('POD_IP')}:{variables.text('PADDLE_PORT')}"
        if own not in jobs.get("ps", []):
            raise ClusterConfigError(
                "A parameter server's POD_IP and PADDLE_PORT are in PADDLE_PSERVERS_IP_PORT_LIST. "
                f"Received: {shown(own)}. Correct one of them."
            )
        task = Task("ps", jobs["ps"].index(own))
    else:
        raise ClusterConfigError(
            f"TRAINING_ROLE is TRAINER or PSERVER. Received: {shown(role)}. Set one of these."
        )
    addresses = {
        Task(job, index): Address.parse(endpoint)
        for job, endpoints in jobs.items()
        for index, endpoint in enumerate(endpoints)
    }
    return TFConfig(ClusterSpec(addresses), task)


def _endpoints(text: str) -> list[str]:
    return [endpoint.strip() for endpoint in text.split(",") if endpoint.strip()]
