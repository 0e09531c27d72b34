"""What a page or a header shows as the output of a command, beside what the command printed."""

from __future__ import annotations

import re

_VARYING = re.compile(r"(\.\.\.|-?\d+\.\d+)")
TOLERANCE = 0.05  # machines and versions of TensorFlow round in other ways


def missing(shown: list[str], output: str) -> list[str]:
    """Returns the lines shown that are not like any line of the output.

    "..." stands for anything. A number with a point may differ by `TOLERANCE`, others may not.

    >>> missing(["accuracy: 0.98", "workers: ...", "..."], "accuracy: 0.9712\\nworkers: 2\\n")
    []
    >>> missing(["accuracy: 0.98", "workers: 2"], "accuracy: 0.91\\nworkers: 3\\n")
    ['accuracy: 0.98', 'workers: 2']
    """
    printed = [line.strip() for line in output.splitlines()]
    return [line for line in shown if not any(_is_like(line, other) for other in printed)]


def _is_like(shown: str, printed: str) -> bool:
    parts = _VARYING.split(shown.strip())
    decimals = [float(part) for part in parts[1::2] if part != "..."]
    match = re.fullmatch("".join(map(_pattern, parts)), printed)
    return match is not None and all(
        abs(float(found) - expected) <= TOLERANCE
        for found, expected in zip(match.groups(), decimals, strict=True)
    )


def _pattern(part: str) -> str:
    if part == "...":
        return ".*"
    return r"(-?\d+\.\d+)" if _VARYING.fullmatch(part) else re.escape(part)
