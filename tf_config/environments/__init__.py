"""Reads the cluster of a process from the environment variables of schedulers and launchers."""

from tf_config.environments.detect import ENVIRONMENTS, resolve
from tf_config.environments.environment import Environment, RankOnly, Resolved

__all__ = ["ENVIRONMENTS", "Environment", "Resolved", "RankOnly", "resolve"]
