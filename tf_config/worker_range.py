"""The numbers of workers between which a job may shrink and grow while it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tf_config.errors import ClusterConfigError, quoted

# The range of an elastic job, such as "2:4", in the environment of each of its tasks.
WORKERS_VARIABLE = "KERAS_STRATEGIES_WORKERS"
# How many workers such a job is started with, in the environment of its parameter servers.
STARTED_VARIABLE = "KERAS_STRATEGIES_STARTED"
# A division of an epoch is written as one digit for each worker.
_MOST = 10_000


@dataclass(frozen=True)
class WorkerRange:
    """The smallest and the largest number of workers of a job; validated on construction.

    >>> WorkerRange.parse("2:4")
    WorkerRange(least=2, most=4)
    >>> str(WorkerRange(2, 4))
    '2:4'

    Attributes:
      least: the number of workers below which the job cannot continue.
      most: the number of workers that TF_CONFIG has addresses for.
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least < self.most <= _MOST:
            raise ClusterConfigError(
                "A range of workers must be MIN:MAX with 1 <= MIN < MAX <= "
                f"{_MOST}. Received: {self.least}:{self.most}. For a fixed number of workers, pass "
                "a single number."
            )

    @classmethod
    def parse(cls, text: str) -> WorkerRange:
        """Returns the range in a text such as `2:4`.

        Raises:
          ClusterConfigError: if the text is not a range.
        """
        match = re.fullmatch(r"(\d{1,5}):(\d{1,5})", text, re.ASCII)
        if match is None:
            raise ClusterConfigError(
                f"A range of workers must be MIN:MAX. Received: {quoted(text)}. For example: 2:4."
            )
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> WorkerRange | None:
        """Returns the range of this process's job; None if its number of workers is fixed.

        >>> WorkerRange.from_env({}) is None
        True

        Raises:
          ClusterConfigError: if the variable is not a range.
        """
        text = environ.get(WORKERS_VARIABLE)
        return None if text is None else cls.parse(text)

    def __str__(self) -> str:
        return f"{self.least}:{self.most}"


def started_workers(environ: Mapping[str, str], workers: int) -> int:
    """Returns how many of a job's workers are started with it; the others may join it later.

    >>> started_workers({}, 4), started_workers({"KERAS_STRATEGIES_STARTED": "2"}, 4)
    (4, 2)

    Args:
      environ: the environment of a parameter server.
      workers: the number of workers in TF_CONFIG.

    Raises:
      ClusterConfigError: if the variable is not a number from 1 to `workers`.
    """
    text = environ.get(STARTED_VARIABLE, str(workers))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= workers):
        raise ClusterConfigError(
            f"{STARTED_VARIABLE} must be a number from 1 to {workers}, the number of workers. "
            f"Received: {quoted(text)}. Unset it; 'tf-config run --workers MIN:MAX' sets it."
        )
    return int(text)
