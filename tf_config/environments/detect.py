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


# In the order of detection: the environment that describes a single process most specifically comes
# first. Several are often present: an operator sets TF_CONFIG in a pod, Slurm's srun sets the
# variables of PMI, and processes of mpirun inherit the batch script's variables of Slurm.
ENVIRONMENTS: Mapping[str, Environment] = {
    environment.name: environment
    for environment in (
        Environment(
            "tf_config",
            (VARIABLE,),
            _read_tf_config,
            is_superseded=vertex.is_detected,
            names_roles=True,
        ),
        Environment(
            "vertex",
            (vertex.VARIABLE,),
            vertex.read,
            is_superseded=lambda environ: not vertex.is_detected(environ),
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
            is_superseded=pytorch.is_inherited_address,
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
        # Before Open MPI: jsrun also sets Open MPI's variables, but not that of its directory.
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
                f"Choose one of these, or omit the option.{suggestion(origin, ENVIRONMENTS)}"
            )
        return ENVIRONMENTS[origin].resolve(environ)
    for environment in ENVIRONMENTS.values():
        if environment.is_detected(environ):
            return environment.resolve(environ)
    _check_companions(environ)
    return None


def _check_companions(environ: Mapping[str, str]) -> None:
    """Checks that no companion variable is set without its marker; see `Environment`."""
    for environment in ENVIRONMENTS.values():
        for name, marker in environment.companions.items():
            if environ.get(name):
                raise ClusterConfigError(
                    f"{name} and {marker} must be set together. Received: "
                    f"{name}={quoted(environ[name], 40)} without {marker}. Set {marker} too, or "
                    f"unset {name}."
                )
