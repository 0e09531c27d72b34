"""Configuration of tables, and of the features that look up in them: valid once built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strategies.checks import check_whole_number

COMBINERS = (None, "sum", "mean", "sqrtn")
UNSEEN = ("initial", "zeros")
OVERFLOW = ("error", "share")
PLACEMENTS = ("sharded", "replicated")
# How often a row was trained on is counted up to here.
MAX_FREQUENCY = 2**20 - 1


@dataclass(frozen=True)
class Admission:
    """Rule by which ids get rows: when they have come often enough.

    Until then an id has the values of one without a row.

    >>> Admission(count=3)
    Admission(count=3, memory=None)

    Args:
      count: number of occurrences in training at which an id gets its row: the row comes in the
        step of the `count`-th one.
      memory: None counts exactly, with a number for each id that was refused. Else so many bytes
        on each worker or server hold a count-min sketch (Cormode and Muthukrishnan, "An improved
        data stream summary", 2005), which may admit an id too early, and never too late.

    Raises:
      ValueError: if a number is out of range.
    """

    count: int
    memory: int | None = None

    def __post_init__(self) -> None:
        check_whole_number("count", self.count, 1)
        if self.memory is not None:
            check_whole_number("memory", self.memory, 1024)


@dataclass(frozen=True)
class Eviction:
    """Rule by which `evict` removes rows: those that are too old, or trained on too rarely.

    >>> Eviction(age=1000)
    Eviction(age=1000, count=None)

    Args:
      age: removes rows that were not trained on in the last `age` steps.
      count: removes rows that were trained on fewer than `count` times, each occurrence counted;
        at most 1,048,575, where counting ends.

    Raises:
      ValueError: if neither is given, or a number is out of range.
    """

    age: int | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.age is None and self.count is None:
            raise ValueError(
                "Rows are evicted by age, by count, or both. Received: neither. Give one."
            )
        for name, value in (("age", self.age), ("count", self.count)):
            if value is not None:
                check_whole_number(name, value, 1)
        if self.count is not None and self.count > MAX_FREQUENCY:
            raise ValueError(
                f"How often a row was trained on is counted up to {MAX_FREQUENCY}. Received: "
                f"count={self.count}. Choose a smaller one."
            )


@dataclass(frozen=True)
class TableConfig:
    """Configuration of a table of rows, in which one or several features look up.

    Args:
      name: name of the table, unique in the layer.
      output_dim: width of a row.
      input_dim: number of ids that may have a row, on all workers together; None is any number.
      embeddings_initializer: a Keras initializer or its name, for the initial values of rows.
      admission: when an id gets a row; None is at its first occurrence.
      eviction: which rows `evict` removes; None is none.
      overflow: handling of ids beyond `input_dim`: "error" ends training, "share" gives all of
        them one row that they share.
      optimizer: a Keras optimizer or its name, which trains this table's rows in place of the
        model's; None is the model's.
      placement: "sharded" gives each row to one worker, or server. "replicated" gives all workers
        a copy of every row, and ids and gradients go to all of them: for a small table that is
        used much, which has `input_dim`, and no `admission`, `eviction` or shared row.

    Raises:
      ValueError: if a value is invalid.
    """

    name: str
    output_dim: int
    input_dim: int | None = None
    embeddings_initializer: Any = "uniform"
    admission: Admission | None = None
    eviction: Eviction | None = None
    overflow: str = "error"
    optimizer: Any = None
    placement: str = "sharded"

    @property
    def is_replicated(self) -> bool:
        """Whether each worker has all rows."""
        return self.placement == "replicated"

    def __post_init__(self) -> None:
        check_whole_number("output_dim", self.output_dim, 1)
        if self.input_dim is not None:
            check_whole_number("input_dim", self.input_dim, 1)
        _check_type("admission", self.admission, Admission, "Admission(count=3)")
        _check_type("eviction", self.eviction, Eviction, "Eviction(age=1000)")
        if self.overflow not in OVERFLOW:
            raise ValueError(
                f"overflow is one of {', '.join(map(repr, OVERFLOW))}. Received: {self.overflow!r}."
            )
        if self.overflow == "share" and self.input_dim is None:
            raise ValueError(
                "Ids share a row where there are input_dim others. Received: overflow='share' "
                "without input_dim. Give both."
            )
        if self.placement not in PLACEMENTS:
            raise ValueError(
                f"placement is one of {', '.join(map(repr, PLACEMENTS))}. "
                f"Received: {self.placement!r}."
            )
        if self.is_replicated:
            self._check_replicated()

    def _check_replicated(self) -> None:
        unfit = [name for name in ("admission", "eviction") if getattr(self, name) is not None]
        unfit += ["overflow='share'"] if self.overflow == "share" else []
        unfit += ["no input_dim"] if self.input_dim is None else []
        if unfit:
            raise ValueError(
                "A table that all workers have a copy of is small and stays so: it has input_dim, "
                "and no admission, eviction or shared row. Received: placement='replicated' with "
                f"{', '.join(unfit)}. Leave the placement out, or correct these."
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values; Keras's objects stay as they are."""
        of_keras = ("embeddings_initializer", "optimizer")
        plain = {
            name: value if value is None or isinstance(value, (int, str)) else asdict(value)
            for name, value in vars(self).items()
            if name not in of_keras
        }
        return {**plain, **{name: getattr(self, name) for name in of_keras}}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TableConfig:
        """Returns a table from the fields that `to_dict` returned."""
        kinds = {"admission": Admission, "eviction": Eviction}
        made = {
            name: kinds[name](**value) if name in kinds and isinstance(value, Mapping) else value
            for name, value in fields.items()
        }
        return cls(**made)


@dataclass(frozen=True)
class FeatureConfig:
    """Configuration of a feature: ids that are looked up in a table.

    Args:
      table: the table; features that share it name the same one.
      combiner: None returns each id's row, "sum", "mean" or "sqrtn" one row for each bag of ids.

    Raises:
      ValueError: if there is no such combiner.
    """

    table: TableConfig
    combiner: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, TableConfig):
            raise ValueError(
                f"A feature looks up in a strategies.TableConfig. Received: {self.table!r}. "
                "Write FeatureConfig(strategies.TableConfig('items', 16)), for example."
            )
        if self.combiner not in COMBINERS:
            raise ValueError(
                f"A combiner is one of {', '.join(map(repr, COMBINERS))}. "
                f"Received: {self.combiner!r}."
            )


def _check_type(name: str, value: Any, kind: type, example: str) -> None:
    """Raises ValueError unless a value is of a kind, or None."""
    if not isinstance(value, (kind, type(None))):
        raise ValueError(
            f"{name} is a strategies.{kind.__name__}. Received: {value!r}. "
            f"Write {name}=strategies.{example}, for example, or leave it out."
        )
