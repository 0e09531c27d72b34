"""PyTorch's launchers, for those who switch: `torchrun`, and operators that set the same.

Variables: pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

from __future__ import annotations

from tf_config.address import Address
from tf_config.environments.environment import Unplaced, Variables


def read(variables: Variables) -> Unplaced:
    """Returns the process's number; all meet at the address of the first one's host."""
    rank, size = variables.number("RANK"), variables.number("WORLD_SIZE")
    host = variables.text("MASTER_ADDR").removeprefix("[").removesuffix("]")
    port = variables.number("MASTER_PORT")
    if variables.find("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun itself listens at MASTER_PORT
    address = Address.parse(str(Address(host, port)))
    return Unplaced(rank, size, f"tcp://{address}")
