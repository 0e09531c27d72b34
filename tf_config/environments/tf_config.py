"""TF_CONFIG itself, as Kubeflow's training operator or a user writes it."""

from __future__ import annotations

from tf_config.cluster import VARIABLE, TFConfig
from tf_config.environments.environment import Variables


def read(variables: Variables) -> TFConfig:
    """Returns the configuration in TF_CONFIG."""
    return TFConfig.from_json(variables.find(VARIABLE) or "")
