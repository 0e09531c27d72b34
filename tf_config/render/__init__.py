"""Renders the files with which schedulers start a job."""

from tf_config.render.kubernetes import KubernetesJob
from tf_config.render.slurm import SlurmJob

__all__ = ["KubernetesJob", "SlurmJob"]
