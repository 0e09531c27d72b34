"""Where a process finds out what it is part of: each scheduler's variables, as tables."""

from tf_config.environments.detect import ENVIRONMENTS, resolve
from tf_config.environments.environment import Environment, Resolved, Unplaced

__all__ = ["ENVIRONMENTS", "Environment", "Resolved", "Unplaced", "resolve"]
