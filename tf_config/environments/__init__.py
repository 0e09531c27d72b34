"""The environments in which a process finds its cluster: the variables of each scheduler."""

from tf_config.environments.detect import ENVIRONMENTS, resolve
from tf_config.environments.environment import Environment, Resolved, Unplaced

__all__ = ["ENVIRONMENTS", "Environment", "Resolved", "Unplaced", "resolve"]
