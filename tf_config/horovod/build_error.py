"""The error of a build of Horovod that cannot start, or that failed."""


class BuildError(Exception):
    """Raised when something for the build is missing or failed; the message has the remedy."""
