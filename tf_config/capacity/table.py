"""An embedding table for a capacity plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tf_config.errors import ClusterConfigError, quoted, suggestion

# The bytes of a number in a row, in a slot variable or in an exchange.
BYTES = {"float32": 4, "bfloat16": 2}
_DTYPES = ("row_dtype", "slot_dtype", "exchange_dtype")

# The number of most frequent ids that are evaluated one by one, and of groups of all other ids.
_SINGLE, _GROUPS = 10_000, 2_000


@dataclass(frozen=True)
class PlannedTable:
    """An embedding table: its rows, its width, and how often the ids of a batch repeat.

    >>> round(PlannedTable("users", rows=1e6, width=16, hotness=2, zipf=0).unique_of(100), 2)
    199.98

    Attributes:
      name: the table's name.
      rows: the number of ids that have a row.
      width: the number of values in a row.
      hotness: the number of ids per example, over all features that use the table.
      unique_ratio: the fraction of unique ids among a worker's ids in a step; `layer.statistics()`
        returns it for an existing table.
      zipf: alternatively, the exponent of Zipf's law: the frequency of the k-th most frequent id is
        proportional to 1 / k ** zipf; with 0, all ids are equally frequent. With neither
        `unique_ratio` nor `zipf`, no id is assumed to repeat.
      row_dtype: the dtype in which rows are stored, "float32" or "bfloat16".
      slot_dtype: the dtype in which the optimizer's slot variables are stored.
      exchange_dtype: the dtype in which rows and gradients are exchanged.

    Raises:
      ClusterConfigError: if a value is invalid.
    """

    name: str
    rows: float
    width: int
    hotness: float = 1.0
    unique_ratio: float | None = None
    zipf: float | None = None
    row_dtype: str = "float32"
    slot_dtype: str = "float32"
    exchange_dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("width", 1), ("hotness", 0)):
            number(f"{name} of the table {quoted(self.name)}", getattr(self, name), least)
        if self.width != int(self.width):
            raise ClusterConfigError(f"width must be an integer. Received: width={self.width!r}.")
        for name in _DTYPES:
            if getattr(self, name) not in tuple(BYTES):  # the value may not be hashable
                raise ClusterConfigError(
                    f"{name} must be one of {', '.join(BYTES)}. Received: "
                    f"{quoted(getattr(self, name))} for {quoted(self.name)}."
                )
        if self.unique_ratio is not None:
            number("unique_ratio", self.unique_ratio, 0, 1)
        if self.zipf is not None:
            number("zipf", self.zipf, 0, 10)
        if self.unique_ratio is not None and self.zipf is not None:
            raise ClusterConfigError(
                "unique_ratio and zipf cannot be combined. Received: both for "
                f"{quoted(self.name)}. Omit one of them."
            )

    @classmethod
    def from_dict(cls, name: str, given: Any) -> PlannedTable:
        """Returns the table with the attributes in a mapping, whose values may be strings."""
        known = [field.name for field in fields(cls) if field.name != "name"]
        rule = f"A table must have rows and width, and may have {', '.join(known[2:])}"
        if not isinstance(given, Mapping):
            raise ClusterConfigError(f"{rule}. Received: {quoted(given)} for {quoted(name)}.")
        for key in given:
            if key not in known:
                raise ClusterConfigError(
                    f"{rule}. Received: {quoted(key)} for {quoted(name)}. Correct or omit "
                    f"it.{suggestion(key, known)}"
                )
        for key in ("rows", "width"):
            if key not in given:
                raise ClusterConfigError(
                    f"{rule}. Received: no {key} for {quoted(name)}. Add it, as in {key}=16."
                )
        values = {
            key: value if key in _DTYPES else parse_number(key, value)
            for key, value in given.items()
        }
        return cls(name, **values)

    def unique_of(self, examples: float) -> float:
        """Returns the expected number of unique ids in this many examples."""
        ids = examples * self.hotness
        if self.unique_ratio is not None:
            return ids * self.unique_ratio
        if self.zipf is None:
            return min(ids, self.rows)
        groups = _frequencies(self.rows, self.zipf)
        total = sum(count * weight for count, weight in groups)
        return sum(count * _occurs(weight / total, ids) for count, weight in groups)


def number(
    name: str, value: Any, least: float, most: float = math.inf, is_above: bool = False
) -> None:
    """Checks that a value is a finite number in a range.

    Raises:
      ClusterConfigError: if the value is not.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    inside = is_number and math.isfinite(value) and least <= value <= most
    if not inside or (is_above and value == least):
        bounds = f"above {least}" if is_above else f"{least} or more"
        bounds += "" if most == math.inf else f", and {most} at most"
        raise ClusterConfigError(f"{name} must be a number, {bounds}. Received: {quoted(value)}.")


def parse_number(name: str, value: Any) -> Any:
    """Returns the number that a string such as `1e9` represents; returns other values unchanged.

    >>> parse_number("rows", "1e9"), parse_number("batch", "7"), parse_number("zipf", None)
    (1000000000, 7, None)
    """
    if not isinstance(value, str):
        return value
    try:
        result = float(value)
        return int(result) if result == int(result) else result
    except (ValueError, OverflowError):
        raise ClusterConfigError(f"{name} must be a number. Received: {quoted(value)}.") from None


def _occurs(probability: float, draws: float) -> float:
    """Returns the probability that an id occurs at least once in this many draws."""
    return 1.0 if probability >= 1 else -math.expm1(draws * math.log1p(-probability))


def _frequencies(rows: float, exponent: float) -> list[tuple[float, float]]:
    """Returns groups of ids: the number of ids, and their relative frequency by Zipf's law.

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
