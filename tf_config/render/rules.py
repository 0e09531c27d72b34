"""Checks of the values in a rendered job, and the command that the job runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tf_config.errors import ClusterConfigError, quoted


def check(what: str, value: str, pattern: str, example: str) -> None:
    """Checks that the whole of `value` matches `pattern`.

    Raises:
      ClusterConfigError: if it does not; the message begins with the rule `what`.
    """
    if not re.fullmatch(pattern, value):
        raise ClusterConfigError(
            f"{what}. Received: {quoted(value)}. For example: {quoted(example)}."
        )


def check_range(what: str, value: int, last: int) -> None:
    """Checks that `value` is in the range from 1 to `last`.

    Raises:
      ClusterConfigError: if it is not.
    """
    if not 1 <= value <= last:
        raise ClusterConfigError(f"{what} must be from 1 to {last}. Received: {quoted(value)}.")


def execute(environment: str, options: Sequence[str], program: Sequence[str]) -> list[str]:
    """Returns the command of a task: `tf-config exec` with the program.

    >>> execute("slurm", ["--chief"], ["train.py", "--epochs=3"])
    ['tf-config', 'exec', '--from', 'slurm', '--chief', '--', 'train.py', '--epochs=3']

    Raises:
      ClusterConfigError: if no program is given, or one of its words is not valid UTF-8 text.
    """
    if not program or not program[0]:
        raise ClusterConfigError(
            f"A program must be given. Received: {quoted(list(program))}. Add it after '--'."
        )
    for word in program:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise ClusterConfigError(
                f"The program and its arguments must be text in UTF-8. Received: {quoted(word)}. "
                "Rename the file, or write the value to a file."
            ) from None
    return ["tf-config", "exec", "--from", environment, *options, "--", *program]
