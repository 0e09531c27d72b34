"""A table of which the size and the use are known beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tf_config.errors import ClusterConfigError, shown, suggestion

# The most frequent ids one by one, the others in so many groups that are alike.
_SINGLE, _GROUPS = 10_000, 2_000


@dataclass(frozen=True)
class PlannedTable:
    """A table: how many rows, how wide, and how often the ids of a batch repeat.

    >>> round(PlannedTable("users", rows=1e6, width=16, hotness=2, zipf=0).unique_of(100), 2)
    199.98

    Attributes:
      name: its name.
      rows: how many ids get a row, of all that come.
      width: how many numbers a row has.
      hotness: ids an example, of all features that look up in it together.
      unique_ratio: how many of a worker's ids in a step are different, as a part of them;
        `layer.statistics()` says it of a table that is in use.
      zipf: in its place the exponent of Zipf's law: the k-th most frequent id comes as often as
        1 / k ** zipf says; 0 is all alike. With neither no id is taken to come twice.

    Raises:
      ClusterConfigError: if a number has no meaning.
    """

    name: str
    rows: float
    width: int
    hotness: float = 1.0
    unique_ratio: float | None = None
    zipf: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("width", 1), ("hotness", 0)):
            number(f"{name} of the table {shown(self.name)}", getattr(self, name), least)
        if self.width != int(self.width):
            raise ClusterConfigError(
                f"A row has a whole number of numbers. Received: width={self.width!r}."
            )
        if self.unique_ratio is not None:
            number("unique_ratio", self.unique_ratio, 0, 1)
        if self.zipf is not None:
            number("zipf", self.zipf, 0, 10)
        if self.unique_ratio is not None and self.zipf is not None:
            raise ClusterConfigError(
                "How often ids repeat is said by unique_ratio or by zipf. Received: both, for "
                f"{shown(self.name)}. Leave one out."
            )

    @classmethod
    def from_dict(cls, name: str, given: Any) -> PlannedTable:
        """Returns the table that a mapping of its attributes describes; numbers may be text."""
        known = [field.name for field in fields(cls) if field.name != "name"]
        rule = f"A table has rows and width, and may have {', '.join(known[2:])}"
        if not isinstance(given, Mapping):
            raise ClusterConfigError(f"{rule}. Received: {shown(given)} for {shown(name)}.")
        for key in given:
            if key not in known:
                raise ClusterConfigError(
                    f"{rule}. Received: {shown(key)} for {shown(name)}. Correct it, or leave it "
                    f"out.{suggestion(key, known)}"
                )
        for key in ("rows", "width"):
            if key not in given:
                raise ClusterConfigError(
                    f"{rule}. Received: no {key} for {shown(name)}. Add it, as in {key}=16."
                )
        values = {key: parsed(key, value) for key, value in given.items()}
        return cls(name, **values)

    def unique_of(self, examples: float) -> float:
        """Returns how many different ids so many examples are expected to have."""
        ids = examples * self.hotness
        if self.unique_ratio is not None:
            return ids * self.unique_ratio
        if self.zipf is None:
            return min(ids, self.rows)
        groups = _frequencies(self.rows, self.zipf)
        total = sum(count * weight for count, weight in groups)
        return sum(count * _comes(weight / total, ids) for count, weight in groups)


def number(
    name: str, value: Any, least: float, most: float = math.inf, is_above: bool = False
) -> None:
    """Checks that a value is a finite number in a range.

    Raises:
      ClusterConfigError: if it is not.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    inside = is_number and math.isfinite(value) and least <= value <= most
    if not inside or (is_above and value == least):
        bounds = f"above {least}" if is_above else f"{least} or more"
        bounds += "" if most == math.inf else f", and {most} at most"
        raise ClusterConfigError(f"{name} is a number, {bounds}. Received: {shown(value)}.")


def parsed(name: str, value: Any) -> Any:
    """Returns the number that a text stands for, `1e9` too; what is no text stays as it is.

    >>> parsed("rows", "1e9"), parsed("batch", "7"), parsed("zipf", None)
    (1000000000, 7, None)
    """
    if not isinstance(value, str):
        return value
    try:
        result = float(value)
        return int(result) if result == int(result) else result
    except (ValueError, OverflowError):
        raise ClusterConfigError(f"{name} is a number. Received: {shown(value)}.") from None


def _comes(probability: float, draws: float) -> float:
    """Returns how probable it is that an id comes at least once."""
    return 1.0 if probability >= 1 else -math.expm1(draws * math.log1p(-probability))


def _frequencies(rows: float, exponent: float) -> list[tuple[float, float]]:
    """Returns how many ids come how often, by Zipf's law and up to a factor.

    >>> _frequencies(3, 1.0)
    [(1.0, 1.0), (1.0, 0.5), (1.0, 0.3333333333333333)]
    """
    single = min(int(rows), _SINGLE)
    groups = [(1.0, k**-exponent) for k in range(1, single + 1)]
    start, stop = single + 0.5, rows + 0.5
    if stop - start >= 1:
        edges = [start * (stop / start) ** (step / _GROUPS) for step in range(_GROUPS + 1)]
        groups += [
            (high - low, math.sqrt(low * high) ** -exponent)
            for low, high in zip(edges, edges[1:], strict=False)
        ]
    return groups
