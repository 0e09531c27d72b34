"""MPICH's Hydra and Intel MPI: each process knows its rank; a rendezvous exchanges the addresses.

Variables: PMI-1, as described at wiki.mpich.org ("Hydra Process Management Framework").
"""

from __future__ import annotations

from collections.abc import Mapping

from tf_config.environments.environment import RankOnly, Variables
from tf_config.rendezvous.shared_directory import MADE_FOR_ONE_JOB


def read(variables: Variables) -> RankOnly:
    """Returns the rank of the process.

    The rendezvous is in the current directory. As Hydra sets no name of the job, two jobs that
    start in the same directory at the same time each require a `--rendezvous`.
    """
    rank, size = variables.number("PMI_RANK"), variables.number("PMI_SIZE")
    return RankOnly(rank, size, f"file:{MADE_FOR_ONE_JOB}pmi")


def is_slurm(environ: Mapping[str, str]) -> bool:
    """Returns whether srun set the variables (`--mpi=pmi2`); Slurm also names the hosts."""
    ranks = environ.get("SLURM_PROCID"), environ.get("SLURM_STEP_NUM_TASKS")
    return ranks == (environ.get("PMI_RANK"), environ.get("PMI_SIZE"))
