"""The environments in which a process finds its cluster: the variables of each scheduler."""

from tf_config.environments.detect import ENVIRONMENTS, resolve
from tf_config.environments.environment import Environment, RankOnly, Resolved

__all__ = ["ENVIRONMENTS", "Environment", "Resolved", "RankOnly", "resolve"]
