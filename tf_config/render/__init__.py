"""What a scheduler needs to start a job, as text: pure functions of the job."""

from tf_config.render.kubernetes import KubernetesJob
from tf_config.render.slurm import SlurmJob

__all__ = ["KubernetesJob", "SlurmJob"]
