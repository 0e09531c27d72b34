"""PaddlePaddle's variables, for users who migrate: those of its launcher, of Fluid and of v2.

`paddle.distributed.launch` names all trainers (`PADDLE_TRAINER_ENDPOINTS`). Fluid's role maker for
parameter servers names the servers and the number of trainers: `PADDLE_PSERVERS_IP_PORT_LIST`, or
`PADDLE_PSERVERS` and `PADDLE_PORT` in Fluid 1.x. So does v2 (`PADDLE_INIT_PSERVERS`, ...). In these
cases, a rendezvous at the first server's address exchanges the trainers' addresses.
"""

from __future__ import annotations

from tf_config.address import Address
from tf_config.cluster import ClusterSpec, Task, TFConfig
from tf_config.environments.environment import RankOnly, Variables
from tf_config.errors import ClusterConfigError, quoted
from tf_config.roles import Roles

MARKERS = (
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_PSERVERS",
    "PADDLE_INIT_PSERVERS",
)
# The substitutes in this package, for the warnings.
UNSUPPORTED = {
    "CPU_NUM": "pass num_replicas=N to the strategy for N replicas per process",
    "PADDLE_INIT_TRAINER_COUNT": (
        "on CPUs, a worker uses all of its cores, or as many as --threads-per-worker"
    ),
    "PADDLE_INIT_PORTS_NUM": "a server has one port",
    "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": "a server has one port",
}
_COUNTS = ("PADDLE_TRAINERS_NUM", "PADDLE_INIT_NUM_GRADIENT_SERVERS")
_IDS = ("PADDLE_TRAINER_ID", "PADDLE_INIT_TRAINER_ID")
_V2_PORT = "7164"
# See `Environment.companions`.
COMPANIONS = {
    "PADDLE_INIT_PORT": "PADDLE_INIT_PSERVERS",
    "PADDLE_INIT_TRAINER_ID": "PADDLE_INIT_PSERVERS",
    "PADDLE_INIT_NUM_GRADIENT_SERVERS": "PADDLE_INIT_PSERVERS",
    "PADDLE_PORT": "PADDLE_PSERVERS",
    "PADDLE_TRAINER_ID": "PADDLE_TRAINER_ENDPOINTS or PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_TRAINERS_NUM": "PADDLE_TRAINER_ENDPOINTS or PADDLE_PSERVERS_IP_PORT_LIST",
}


def read(variables: Variables) -> TFConfig | RankOnly:
    """Returns the cluster of trainers and parameter servers with this task, or only its rank."""
    servers = _servers(variables)
    text = variables.find("PADDLE_TRAINER_ENDPOINTS")
    trainers = None if text is None else [str(Address.parse(each)) for each in _split_names(text)]
    if trainers is None and not servers:
        variables.text(*MARKERS)
    repeated = next((address for address in servers if servers.count(address) > 1), None)
    if repeated is not None:
        raise ClusterConfigError(
            f"Each parameter server in {_servers_variable(variables)} must have its own address. "
            f"Received: {repeated} twice. Use a different port for each server of a host."
        )
    count = variables.number(*_COUNTS) if trainers is None or variables.find(*_COUNTS) else None
    if trainers is not None and count is not None and count != len(trainers):
        raise ClusterConfigError(
            "PADDLE_TRAINERS_NUM must be the number of PADDLE_TRAINER_ENDPOINTS. Received: "
            f"{count} and {len(trainers)} endpoints. Correct one of them."
        )
    task = _task(variables, servers)
    if trainers is not None:
        jobs = {"worker": trainers, "ps": servers}
        addresses = {
            Task(job, index): Address.parse(endpoint)
            for job, endpoints in jobs.items()
            for index, endpoint in enumerate(endpoints)
        }
        return TFConfig(ClusterSpec(addresses), task)
    roles = Roles(count or 0, len(servers))
    if task not in roles.tasks:
        raise ClusterConfigError(
            f"The trainer's number must be from 0 to {roles.workers - 1}. Received: {task.index}. "
            f"Correct {' or '.join(_IDS)}, or the number of trainers."
        )
    # A server leads, because only the servers' addresses are known to all processes.
    return RankOnly(
        rank=roles.tasks.index(task),
        size=len(roles.tasks),
        rendezvous=f"tcp://{servers[0]}",
        roles=roles,
        leader=roles.workers,
        address=Address.parse(servers[task.index]) if task.type == "ps" else None,
    )


def _servers_variable(variables: Variables) -> str:
    return next((name for name in MARKERS[1:] if name in variables.seen), MARKERS[1])


def _servers(variables: Variables) -> list[str]:
    """Returns the addresses of the parameter servers, ordered by index."""
    text = variables.find("PADDLE_PSERVERS_IP_PORT_LIST")
    if text is not None:
        servers = _split_names(text)
    elif (text := variables.find("PADDLE_PSERVERS")) is not None:
        servers = _add_ports(_split_names(text), "PADDLE_PORT", variables.text("PADDLE_PORT"))
    elif (text := variables.find("PADDLE_INIT_PSERVERS")) is not None:
        port = variables.find("PADDLE_INIT_PORT") or _V2_PORT
        servers = _add_ports(_split_names(text), "PADDLE_INIT_PORT", port)
    else:
        return []
    return [str(Address.parse(endpoint)) for endpoint in servers]


def _add_ports(hosts: list[str], name: str, text: str) -> list[str]:
    """Returns the addresses of hosts with the same port, or with one port for each host."""
    ports = _split_names(text)
    if len(ports) not in (1, len(hosts)):
        raise ClusterConfigError(
            f"{name} must be one port, or one port for each server. Received: {quoted(text)} for "
            f"{len(hosts)} servers. Correct the number of ports."
        )
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]


def _task(variables: Variables, servers: list[str]) -> Task:
    role = variables.find("TRAINING_ROLE") or "TRAINER"
    if role == "TRAINER":
        return Task("worker", variables.number(*_IDS))
    if role != "PSERVER":
        raise ClusterConfigError(
            f"TRAINING_ROLE must be TRAINER or PSERVER. Received: {quoted(role)}. Set one of these."
        )
    host = variables.text("POD_IP")
    ports = _split_names(variables.find("PADDLE_PORT", "PADDLE_INIT_PORT") or _V2_PORT)
    own = [index for index, server in enumerate(servers) if server.rpartition(":")[0] == host]
    if len(ports) == 1:
        own = [index for index in own if servers[index] == f"{host}:{ports[0]}"]
    if len(own) != 1:
        raise ClusterConfigError(
            "POD_IP and PADDLE_PORT (or PADDLE_INIT_PORT) must name one of the parameter servers "
            f"in {_servers_variable(variables)}. Received: {quoted(host)} and "
            f"{quoted(','.join(ports))}, of {quoted(','.join(servers))}. Correct one of them."
        )
    return Task("ps", own[0])


def _split_names(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
