"""MPICH's Hydra and Intel MPI: each process knows its number; the hosts are exchanged.

Variables: PMI-1, as wiki.mpich.org describes it ("Hydra Process Management Framework").
"""

from __future__ import annotations

from collections.abc import Mapping

from tf_config.environments.environment import Unplaced, Variables
from tf_config.rendezvous.directory import MADE_FOR_ONE_JOB


def read(variables: Variables) -> Unplaced:
    """Returns the process's number.

    All processes meet in the directory that they were started in. Hydra gives a job no name, so
    two jobs that start there at the same time need a `--rendezvous` each, and are told so.
    """
    rank, size = variables.number("PMI_RANK"), variables.number("PMI_SIZE")
    return Unplaced(rank, size, f"file:{MADE_FOR_ONE_JOB}pmi")


def is_slurm(environ: Mapping[str, str]) -> bool:
    """Whether srun itself set the variables (`--mpi=pmi2`): it knows the hosts as well."""
    ranks = environ.get("SLURM_PROCID"), environ.get("SLURM_STEP_NUM_TASKS")
    return ranks == (environ.get("PMI_RANK"), environ.get("PMI_SIZE"))
