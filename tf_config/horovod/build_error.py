"""The exception for builds of Horovod that cannot start or that fail."""


class BuildError(Exception):
    """Raised when a build fails or a prerequisite is missing; the message states the remedy."""
