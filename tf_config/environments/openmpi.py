"""Open MPI's mpirun: each process knows its rank; a rendezvous exchanges the addresses.

Variables: docs.open-mpi.org, "Environment variables", and those of PMIx.
"""

from __future__ import annotations

from tf_config.environments.environment import RankOnly, Variables
from tf_config.rendezvous.shared_directory import MADE_FOR_ONE_JOB


def read(variables: Variables) -> RankOnly:
    """Returns the rank of the process.

    The rendezvous is a new directory: in the directory that Open MPI created if all processes are
    on one host, and otherwise in the current directory.
    """
    rank = variables.number("OMPI_COMM_WORLD_RANK")
    size = variables.number("OMPI_COMM_WORLD_SIZE")
    local = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE")
    directory = variables.find("PMIX_SERVER_TMPDIR")
    if local == size and directory is not None:
        return RankOnly(rank, size, f"file://{directory}/{MADE_FOR_ONE_JOB}meeting")
    job = variables.find("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid") or "openmpi"
    name = "".join(c if c.isalnum() else "-" for c in job)
    return RankOnly(rank, size, f"file:{MADE_FOR_ONE_JOB}{name}")
