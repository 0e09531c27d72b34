"""PyTorch's launchers, for users who switch: `torchrun`, and operators with the same variables.

Variables: pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

from __future__ import annotations

from collections.abc import Mapping

from tf_config.address import Address
from tf_config.environments.environment import RankOnly, Variables


def is_address_of_script(environ: Mapping[str, str]) -> bool:
    """Returns whether a batch script set the address, as many do, but a scheduler set the rank.

    >>> is_address_of_script({"MASTER_ADDR": "node1", "SLURM_PROCID": "0"})
    True
    """
    ranks = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return not environ.get("RANK") and any(environ.get(rank) for rank in ranks)


def read(variables: Variables) -> RankOnly:
    """Returns the rank of the process; all processes meet at an address of the first one's host."""
    rank, size = variables.number("RANK"), variables.number("WORLD_SIZE")
    host = variables.text("MASTER_ADDR").removeprefix("[").removesuffix("]")
    port = variables.number("MASTER_PORT")
    if variables.find("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun itself listens on MASTER_PORT
    address = Address.parse(str(Address(host, port)))
    return RankOnly(rank, size, f"tcp://{address}")
