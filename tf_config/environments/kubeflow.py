"""Kubeflow Trainer v2: the nodes of a TrainJob with a runtime for PyTorch, without `torchrun`.

Variables: those that torchrun reads, kubeflow.org/docs/components/trainer, which the plug-in for
PyTorch sets. Each node starts one task. Runtimes of the first operator set TF_CONFIG.
"""

from __future__ import annotations

from tf_config.address import Address
from tf_config.environments.environment import RankOnly, Variables

MARKER = "PET_MASTER_ADDR"


def read(variables: Variables) -> RankOnly:
    """Returns the rank of the node; all nodes meet at an address of the first one."""
    rank, size = variables.number("PET_NODE_RANK"), variables.number("PET_NNODES")
    address = Address.parse(
        str(Address(variables.text(MARKER), variables.number("PET_MASTER_PORT")))
    )
    return RankOnly(rank, size, f"tcp://{address}")
