"""PyTorch's launchers, for users who migrate: `torchrun`, and operators with the same variables.

Variables: pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

from __future__ import annotations

from collections.abc import Mapping

from tf_config.address import Address
from tf_config.environments.environment import RankOnly, Variables


def is_inherited_address(environ: Mapping[str, str]) -> bool:
    """Returns whether a batch script set the address, as many do, while a scheduler set the rank.

    >>> is_inherited_address({"MASTER_ADDR": "node1", "SLURM_PROCID": "0"})
    True
    """
    ranks = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return not environ.get("RANK") and any(environ.get(rank) for rank in ranks)


def read(variables: Variables) -> RankOnly:
    """Returns the rank of the process; the rendezvous is on the host of the first process."""
    rank, size = variables.number("RANK"), variables.number("WORLD_SIZE")
    host = variables.text("MASTER_ADDR").removeprefix("[").removesuffix("]")
    port = variables.number("MASTER_PORT")
    if variables.find("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun itself listens on MASTER_PORT
    address = Address.parse(str(Address(host, port)))
    return RankOnly(rank, size, f"tcp://{address}")
