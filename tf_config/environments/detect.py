"""Detection of the environment that a process runs in."""

from __future__ import annotations

from collections.abc import Mapping

from tf_config.cluster import VARIABLE, TFConfig
from tf_config.environments import (
    kubeflow,
    kubernetes,
    lsf,
    openmpi,
    paddle,
    pmi,
    pytorch,
    sagemaker,
    slurm,
    vertex,
)
from tf_config.environments.environment import Environment, Resolved, Variables
from tf_config.errors import ClusterConfigError, quoted, suggestion


def _read_tf_config(variables: Variables) -> TFConfig:
    """Returns the configuration in TF_CONFIG itself, as Kubeflow's operator or a user sets it."""
    return TFConfig.from_json(variables.find(VARIABLE) or "")


# In the order of detection: environments that say most about this very process come first. Several
# are often present at once: an operator sets TF_CONFIG in a pod, Slurm's srun sets PMI's variables,
# and mpirun in a batch script inherits Slurm's, which describe the script and not the process.
ENVIRONMENTS: Mapping[str, Environment] = {
    environment.name: environment
    for environment in (
        Environment(
            "tf_config",
            (VARIABLE,),
            _read_tf_config,
            is_superseded=vertex.is_there,
            names_roles=True,
        ),
        Environment(
            "vertex",
            (vertex.VARIABLE,),
            vertex.read,
            is_superseded=lambda environ: not vertex.is_there(environ),
            names_roles=True,
        ),
        Environment(
            "paddle",
            paddle.MARKERS,
            paddle.read,
            names_roles=True,
            unsupported=paddle.UNSUPPORTED,
            companions=paddle.COMPANIONS,
        ),
        Environment("kubernetes", kubernetes.MARKERS, kubernetes.read, names_roles=True),
        Environment(
            "pytorch",
            ("MASTER_ADDR",),
            pytorch.read,
            is_superseded=pytorch.is_address_of_script,
            companions=dict.fromkeys(("MASTER_PORT", "WORLD_SIZE"), "MASTER_ADDR"),
        ),
        Environment(
            "kubeflow",
            (kubeflow.MARKER,),
            kubeflow.read,
            companions=dict.fromkeys(("PET_NODE_RANK", "PET_MASTER_PORT"), kubeflow.MARKER),
        ),
        Environment(
            "sagemaker",
            (sagemaker.HOSTS_VARIABLE,),
            sagemaker.read,
            companions={"SM_CURRENT_HOST": sagemaker.HOSTS_VARIABLE},
        ),
        # Under jsrun there are the variables of Open MPI as well, but not its directory.
        Environment(
            "lsf",
            (lsf.RANK_VARIABLE,),
            lsf.read,
            companions={"JSM_NAMESPACE_SIZE": lsf.RANK_VARIABLE},
        ),
        Environment(
            "openmpi",
            ("OMPI_COMM_WORLD_RANK",),
            openmpi.read,
            makes_terminals=True,
            companions={"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK"},
        ),
        Environment(
            "pmi",
            ("PMI_RANK",),
            pmi.read,
            is_superseded=pmi.is_slurm,
            companions={"PMI_SIZE": "PMI_RANK"},
        ),
        Environment(
            "slurm",
            ("SLURM_JOB_ID",),
            slurm.read,
            slurm.locate,
            cores=slurm.cores,
            extra_warnings=slurm.extra_warnings,
            companions={"SLURM_PROCID": "SLURM_JOB_ID"},
        ),
    )
}


def resolve(environ: Mapping[str, str], origin: str | None = None) -> Resolved | None:
    """Returns the configuration in `environ`; None if no known environment is detected.

    >>> resolve({}) is None
    True

    Args:
      environ: the environment variables of a process.
      origin: the environment to read; None for the first one detected.

    Raises:
      ClusterConfigError: if the environment is unknown, or its variables are invalid or incomplete.
    """
    if origin is not None:
        if origin not in ENVIRONMENTS:
            raise ClusterConfigError(
                f"--from must be one of {', '.join(ENVIRONMENTS)}. Received: {quoted(origin)}. "
                f"Choose one, or leave it out.{suggestion(origin, ENVIRONMENTS)}"
            )
        return ENVIRONMENTS[origin].resolve(environ)
    for environment in ENVIRONMENTS.values():
        if environment.is_there(environ):
            return environment.resolve(environ)
    _check_alone(environ)
    return None


def _check_alone(environ: Mapping[str, str]) -> None:
    """Checks that no variable of an environment is set without the one that it belongs to."""
    for environment in ENVIRONMENTS.values():
        for name, marker in environment.companions.items():
            if environ.get(name):
                raise ClusterConfigError(
                    f"{name} and {marker} must be set together. Received: "
                    f"{name}={quoted(environ[name], 40)} without {marker}. Set {marker} too, or "
                    f"unset {name}."
                )
