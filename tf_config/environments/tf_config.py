"""TF_CONFIG itself, as Kubeflow's training operator and users write it."""

from __future__ import annotations

from tf_config.cluster import VARIABLE, TFConfig
from tf_config.environments.environment import Variables


def read(variables: Variables) -> TFConfig:
    """Returns what TF_CONFIG holds."""
    return TFConfig.from_json(variables.find(VARIABLE) or "")
