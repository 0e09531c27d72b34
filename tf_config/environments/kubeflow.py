"""Kubeflow Trainer v2: the nodes of a TrainJob with a runtime for PyTorch, without `torchrun`.

Variables: those that torchrun reads and that the trainer's PyTorch plugin sets; see
kubeflow.org/docs/components/trainer. Each node starts one task. Version 1 (the Training Operator)
sets TF_CONFIG instead.
"""

from __future__ import annotations

from tf_config.address import Address
from tf_config.environments.environment import RankOnly, Variables

MARKER = "PET_MASTER_ADDR"


def read(variables: Variables) -> RankOnly:
    """Returns the rank of the node; the rendezvous is at an address of the first node."""
    rank, size = variables.number("PET_NODE_RANK"), variables.number("PET_NNODES")
    address = Address.parse(
        str(Address(variables.text(MARKER), variables.number("PET_MASTER_PORT")))
    )
    return RankOnly(rank, size, f"tcp://{address}")
