"""Horovod's environment variables, and the build of its wheel."""

# In version 0.1.0, `tf_config.horovod` was a module with these names.
from tf_config.horovod.environment import (
    CONTROLLER_VARIABLE,
    INTERFACE_VARIABLE,
    MPI_VARIABLES,
    OPERATIONS_VARIABLE,
    RANK_VARIABLE,
    defaults,
    place,
    rendezvous_at,
)

__all__ = [
    "CONTROLLER_VARIABLE",
    "INTERFACE_VARIABLE",
    "MPI_VARIABLES",
    "OPERATIONS_VARIABLE",
    "RANK_VARIABLE",
    "defaults",
    "place",
    "rendezvous_at",
]
