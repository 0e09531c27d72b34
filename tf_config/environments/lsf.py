"""IBM LSF: the tasks of a job step under jsrun, which know their ranks.

Variables: IBM Job Step Manager, "jsrun", and IBM Spectrum LSF, "Environment variables". Without
jsrun, `tf-config run --allocation` starts the tasks; see allocation.py.
"""

from __future__ import annotations

from tf_config.environments.environment import RankOnly, Variables
from tf_config.rendezvous.shared_directory import MADE_FOR_ONE_JOB

RANK_VARIABLE = "JSM_NAMESPACE_RANK"


def read(variables: Variables) -> RankOnly:
    """Returns the rank of the process; the rendezvous is in the current directory."""
    rank, size = variables.number(RANK_VARIABLE), variables.number("JSM_NAMESPACE_SIZE")
    job = variables.text("LSB_JOBID")
    step = variables.find("PMIX_NAMESPACE") or "1"
    name = "".join(c if c.isalnum() else "-" for c in f"{job}-{step}")
    return RankOnly(rank, size, f"file:{MADE_FOR_ONE_JOB}lsf-{name}")
