"""Checks of arguments that many constructors take, with the same error message for all."""

from __future__ import annotations

import math
from typing import Any


def check_whole_number(name: str, value: Any, least: int | None = None, advice: str = "") -> None:
    """Checks that an argument is an integer; True and False are not.

    >>> check_whole_number("steps", 1, least=1)
    >>> check_whole_number("steps", 0, least=1, advice="Leave it out for the default.")
    Traceback (most recent call last):
    ValueError: steps must be an integer >= 1. Received: 0. Leave it out for the default.

    Args:
      name: the name of the argument.
      value: the value of the argument.
      least: the smallest allowed value; None for no bound.
      advice: what the user can do, for the error message.

    Raises:
      ValueError: if the value is not an integer, or is too small.
    """
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and (least is None or value >= least):
        return
    bound = "" if least is None else f" >= {least}"
    raise ValueError(f"{name} must be an integer{bound}. Received: {value!r}. {advice}".rstrip())


def check_number(name: str, value: Any, least: float) -> None:
    """Checks that an argument is a finite number; True and False are not.

    >>> check_number("l2", 1e-5, least=0)
    >>> check_number("l2", -1, least=0)
    Traceback (most recent call last):
    ValueError: l2 must be a finite number >= 0. Received: -1.

    Args:
      name: the name of the argument.
      value: the value of the argument.
      least: the smallest allowed value.

    Raises:
      ValueError: if the value is not a finite number, or is too small.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= least):
        raise ValueError(f"{name} must be a finite number >= {least}. Received: {value!r}.")
