"""Configurations of embedding tables and features, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strategies.utils.argument_checks import check_number, check_whole_number
from strategies.variables.rounded_array import ROW_DTYPES

COMBINERS = (None, "sum", "mean", "sqrtn")
UNSEEN = ("initial", "zeros")
OVERFLOW = ("error", "share", "evict")
POLICIES = ("lru", "lfu")
PLACEMENTS = ("sharded", "replicated")
# The largest frequency that is stored for a row.
MAX_FREQUENCY = 2**20 - 1


@dataclass(frozen=True)
class Admission:
    """Rule that gives an id a row once it has occurred often enough.

    Until then, a lookup returns the values of an id without a row; see `unseen`.

    >>> Admission(count=3)
    Admission(count=3, memory=None)

    Args:
      count: number of occurrences in training that an id needs to get a row. The row is created in
        the step of the `count`-th occurrence.
      memory: size in bytes, on each worker or server, of a count-min sketch (Cormode and
        Muthukrishnan, "An improved data stream summary", 2005), which may admit an id too early
        but never too late. None counts exactly and stores one number for each refused id.

    Raises:
      ValueError: if an argument is out of range.
    """

    count: int
    memory: int | None = None

    def __post_init__(self) -> None:
        check_whole_number("count", self.count, 1)
        if self.memory is not None:
            check_whole_number("memory", self.memory, 1024)


@dataclass(frozen=True)
class Eviction:
    """Rule that selects the rows to remove: those not trained on recently or often.

    A row that one of `age`, `count` and `seconds` selects is removed by `evict`, and with `every`
    also during training. `policy` orders the rows of a full table with `overflow="evict"`.

    >>> rule = Eviction(age=100_000, every=1000)
    >>> rule.age, rule.every
    (100000, 1000)

    Args:
      age: removes rows that were not trained on in the last `age` steps.
      count: removes rows that were trained on fewer than `count` times. Every occurrence of an id
        counts. At most 1,048,575, the largest number that is stored.
      seconds: removes rows that were not trained on in the last `seconds` seconds, by the clock of
        the first worker; on parameter servers, by that of the server that has the row. The time
        between a save and a restart counts. A row may stay longer by 1/64 of `seconds`.
      every: removes the selected rows whenever `every` further steps are done, at the beginning of
        the next one. None removes them in calls of `evict` only.
      policy: the rows that a full table with `overflow="evict"` removes first. "lru" are those that
        were least recently trained on, and "lfu" those that were least frequently trained on. None
        is "lru" in such a table.

    Raises:
      ValueError: if no argument selects rows, or one is out of range.
    """

    age: int | None = None
    count: int | None = None
    seconds: float | None = None
    every: int | None = None
    policy: str | None = None

    def __post_init__(self) -> None:
        selects = any(each is not None for each in (self.age, self.count, self.seconds))
        if self.every is not None and not selects:
            raise ValueError(
                "every requires an age, a count or seconds, which select the rows to remove. "
                f"Received: every={self.every!r} without them. Set one of them, or omit every."
            )
        if not selects and self.policy is None:
            raise ValueError(
                "Eviction requires an age, a count, seconds, or a policy. Received: none of them."
            )
        for name, value in (("age", self.age), ("count", self.count), ("every", self.every)):
            if value is not None:
                check_whole_number(name, value, 1)
        if self.seconds is not None:
            check_number("seconds", self.seconds, 1e-3)
        if self.policy not in (None, *POLICIES):
            raise ValueError(
                f"policy must be one of {', '.join(map(repr, POLICIES))}. Received: "
                f"{self.policy!r}."
            )
        if self.count is not None and self.count > MAX_FREQUENCY:
            raise ValueError(
                f"count cannot exceed {MAX_FREQUENCY}. Received: count={self.count}. Use a smaller "
                "count."
            )


@dataclass(frozen=True)
class TableConfig:
    """Configuration of an embedding table, which one or more features share.

    Args:
      name: name of the table, unique in the layer.
      output_dim: width of a row.
      input_dim: maximum number of ids with a row, over all workers; None sets no limit.
      embeddings_initializer: Keras initializer of the rows, or its name. Its seed, if it has one,
        takes the place of the layer's.
      admission: rule that gives an id a row; None creates the row at the first occurrence.
      eviction: rule for the rows to remove; None selects none.
      overflow: handling of ids beyond `input_dim`: "error" ends training with an error, "share"
        maps all of them to one shared row, "evict" removes the rows that the `policy` of `eviction`
        ranks first, a batch of them at a time.
      optimizer: Keras optimizer, or its name, that trains this table's rows instead of the model's
        optimizer; None uses the model's optimizer.
      l2: coefficient of an L2 penalty on the rows that a step trains. The penalty is `l2` times the
        sum of the squares of their elements, as in `keras.regularizers.L2`. Each row is counted
        once, no matter how often and on how many replicas its id occurs in the step.
      placement: "sharded" stores each row on one worker or server. "replicated" stores a copy of
        every row on each worker and sends ids and gradients to all workers. Use it for a small,
        frequently used table; it requires `input_dim` and does not support `admission`,
        `eviction`, `overflow="share"`, `overflow="evict"` or `exchange_dtype="bfloat16"`.
      row_dtype: dtype in which rows are stored, "float32" or "bfloat16". They are trained in
        float32 and saved as float32 in either case. What an optimizer writes to bfloat16 rows is
        rounded up or down at random, so that small updates are not lost.
      slot_dtype: the same for the optimizer's slot variables of the rows.
      exchange_dtype: dtype in which workers and servers exchange rows and their gradients,
        "float32" or "bfloat16". Gradients are added in float32.

    Raises:
      ValueError: if an argument is invalid.
    """

    name: str
    output_dim: int
    input_dim: int | None = None
    embeddings_initializer: Any = "uniform"
    admission: Admission | None = None
    eviction: Eviction | None = None
    overflow: str = "error"
    optimizer: Any = None
    l2: float = 0.0
    placement: str = "sharded"
    row_dtype: str = "float32"
    slot_dtype: str = "float32"
    exchange_dtype: str = "float32"

    @property
    def is_replicated(self) -> bool:
        """Whether each worker has a copy of all rows."""
        return self.placement == "replicated"

    @property
    def evicts_in_steps(self) -> bool:
        """Whether rows are removed during training, and not only by `evict`."""
        rule = self.eviction
        return self.overflow == "evict" or (rule is not None and rule.every is not None)

    def __post_init__(self) -> None:
        check_whole_number("output_dim", self.output_dim, 1)
        if self.input_dim is not None:
            check_whole_number("input_dim", self.input_dim, 1)
        _check_type("admission", self.admission, Admission, "Admission(count=3)")
        _check_type("eviction", self.eviction, Eviction, "Eviction(age=1000)")
        if self.overflow not in OVERFLOW:
            raise ValueError(
                f"overflow must be one of {', '.join(map(repr, OVERFLOW))}. Received: "
                f"{self.overflow!r}."
            )
        if self.overflow != "error" and self.input_dim is None:
            raise ValueError(
                f"overflow={self.overflow!r} requires input_dim. Received: "
                f"overflow={self.overflow!r} without input_dim."
            )
        policy = None if self.eviction is None else self.eviction.policy
        if policy is not None and self.overflow != "evict":
            raise ValueError(
                "The policy of an Eviction requires overflow='evict', because it orders the rows "
                f"of a full table. Received: policy={policy!r} with overflow={self.overflow!r}. "
                "Set overflow='evict', or omit the policy."
            )
        check_number("l2", self.l2, 0)
        if self.placement not in PLACEMENTS:
            raise ValueError(
                f"placement must be one of {', '.join(map(repr, PLACEMENTS))}. Received: "
                f"{self.placement!r}."
            )
        for name in ("row_dtype", "slot_dtype", "exchange_dtype"):
            value = getattr(self, name)
            # A tf.DType equals its name, but cannot be saved with the configuration.
            if not isinstance(value, str) or value not in ROW_DTYPES:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, ROW_DTYPES))}. Received: "
                    f"{value!r}."
                )
        if self.is_replicated:
            self._check_replicated()

    def _check_replicated(self) -> None:
        conflicts = [name for name in ("admission", "eviction") if getattr(self, name) is not None]
        conflicts += [f"overflow={self.overflow!r}"] if self.overflow != "error" else []
        conflicts += ["no input_dim"] if self.input_dim is None else []
        if self.exchange_dtype != "float32":
            conflicts.append(f"exchange_dtype={self.exchange_dtype!r}")
        if conflicts:
            raise ValueError(
                "placement='replicated' requires input_dim, and cannot be combined with admission, "
                "eviction, overflow='share', overflow='evict' or exchange_dtype='bfloat16', "
                "because every worker has a copy of the table. "
                f"Received: placement='replicated' with {', '.join(conflicts)}. Change these, or "
                "omit the placement."
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain Python values, except for Keras objects."""
        of_keras = ("embeddings_initializer", "optimizer")
        plain = {
            name: value if value is None or isinstance(value, (int, float, str)) else asdict(value)
            for name, value in vars(self).items()
            if name not in of_keras
        }
        return {**plain, **{name: getattr(self, name) for name in of_keras}}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TableConfig:
        """Creates a table configuration from the output of `to_dict`."""
        kinds = {"admission": Admission, "eviction": Eviction}
        values = {
            name: kinds[name](**value) if name in kinds and isinstance(value, Mapping) else value
            for name, value in fields.items()
        }
        return cls(**values)


@dataclass(frozen=True)
class FeatureConfig:
    """Configuration of a feature, whose ids are looked up in a table.

    Args:
      table: configuration of the table; features with the same configuration share the table.
      combiner: None returns one row for each id; "sum", "mean" or "sqrtn" returns one row for each
        bag of ids.

    Raises:
      ValueError: if `table` is not a `TableConfig` or the combiner is unknown.
    """

    table: TableConfig
    combiner: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, TableConfig):
            raise ValueError(
                f"table must be a strategies.TableConfig. Received: {self.table!r}. For example: "
                "FeatureConfig(strategies.TableConfig('items', 16))."
            )
        if self.combiner not in COMBINERS:
            raise ValueError(
                f"combiner must be one of {', '.join(map(repr, COMBINERS))}. Received: "
                f"{self.combiner!r}."
            )


def _check_type(name: str, value: Any, kind: type, example: str) -> None:
    """Raises ValueError unless a value is None or an instance of `kind`."""
    if not isinstance(value, (kind, type(None))):
        raise ValueError(
            f"{name} must be a strategies.{kind.__name__}. Received: {value!r}. For example: "
            f"{name}=strategies.{example}; or omit it."
        )
