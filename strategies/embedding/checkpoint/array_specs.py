"""Names, dtypes and shapes of the arrays of a saved table.

* `ids`, and in the same order `rows`, `slot/<name>` for each slot variable, `times` (the last step
  of each row) and `touches` (its frequency).
* `present_ids`: in a delta, all ids with a row; or `removed_ids`: ids that may have had one in what
  the delta builds on, and have none.
* `initial_slot_<name>`: initial value of a slot variable's new rows, [1, width].
* `refused_ids` and `refused_counts`, or `sketch`: counts of ids without a row.
* `step_times`: pairs of a time and a step, for eviction by the clock; see `step_times.py`.
* `overflow_rows`, `overflow_slot_<name>` and so on: the shared rows, one for each worker.

Files have these names, which must not change, so that files of earlier versions can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from strategies.embedding.shard.admission import ExactCounter, SketchCounter
from strategies.embedding.shard.table import Table

# Prefixes and names of arrays.
SLOT = "slot/"
OVERFLOW = "overflow_"
INITIAL = "initial_"
PRESENT = "present_ids"
REMOVED = "removed_ids"
TIMES = "step_times"


def is_row_array(key: str) -> bool:
    """Returns whether the array of this name is `ids` or in the order of `ids`."""
    return key in ("ids", "rows", "times", "touches") or key.startswith(SLOT)


def is_of_one_worker(key: str) -> bool:
    """Returns whether all workers have the same array of this name, which is saved once."""
    return key == TIMES or key.startswith(INITIAL)


def is_extra_array(key: str) -> bool:
    """Returns whether the array of this name is one of `snapshot.extra_arrays`."""
    return key not in (PRESENT, REMOVED) and not is_row_array(key)


def check(table: Table, arrays: Mapping[str, np.ndarray]) -> None:
    """Checks the arrays of a table before any of them is restored.

    Raises:
      ValueError: if an array is missing or does not fit the table.
    """
    if "step" not in arrays or np.shape(arrays["step"]) != ():
        raise ValueError(_wrong(table, "no step"))
    count = np.size(arrays.get("ids", ()))
    for key, (dtype, shape) in specs(table, arrays).items():
        array = np.asarray(arrays[key])
        expected = (count, *shape[1:]) if is_row_array(key) else shape
        fits = len(expected) == array.ndim and all(
            size in (None, given) for size, given in zip(expected, array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            raise ValueError(_wrong(table, f"{key} of {array.dtype} and shape {array.shape}"))
    if "sketch" in arrays:
        check_sketch(table, np.asarray(arrays["sketch"]))


def check_sketch(table: Table, sketch: np.ndarray) -> None:
    """Checks the sketch of ids without a row before it is restored.

    Raises:
      ValueError: if the table counts exactly, or with a sketch of another size.
    """
    if isinstance(table.counter, ExactCounter):
        raise ValueError(
            "A sketch of counts can only be restored to a sketch, because it does not contain the "
            f"ids. Received: a sketch for {table.config.name!r}, whose admission has memory=None. "
            "Set the memory that it was saved with."
        )
    if isinstance(table.counter, SketchCounter):
        table.counter.check(sketch)


def specs(table: Table, names: Iterable[str]) -> dict[str, tuple[type, tuple[int | None, ...]]]:
    """Returns the dtypes and shapes of the arrays of these names; None is any length.

    Raises:
      ValueError: if an array is missing, or the table does not have such an array.
    """
    names, width = set(names), table.config.output_dim
    expected: dict[str, tuple[type, tuple[int | None, ...]]] = {
        "ids": (np.int64, (None,)),
        "rows": (np.float32, (None, width)),
        "times": (np.int64, (None,)),
        "touches": (np.int32, (None,)),
        PRESENT: (np.int64, (None,)),
        REMOVED: (np.int64, (None,)),
        TIMES: (np.int64, (None, 2)),
        "refused_ids": (np.int64, (None,)),
        "refused_counts": (np.int64, (None,)),
    }
    missing = {"ids", "rows", "times", "touches"} - names
    if "refused_ids" in names or "refused_counts" in names:
        missing |= {"refused_ids", "refused_counts"} - names
    if missing:
        raise ValueError(_wrong(table, f"no {', '.join(sorted(missing))}"))
    if any(name.startswith(OVERFLOW) for name in names) and table.overflow is None:
        raise ValueError(missing_overflow(table))
    result = {}
    for name in names - {"step", "sketch"}:
        plain = name.removeprefix(OVERFLOW).removeprefix(INITIAL).replace("slot_", SLOT, 1)
        if plain.startswith(SLOT):
            result[name] = expected["rows"]
        elif plain not in expected:
            raise ValueError(_wrong(table, f"an array {name!r}"))
        else:
            result[name] = expected[plain]
    return result


def _wrong(table: Table, received: str) -> str:
    return (
        f"The rows of the table {table.config.name!r} must have width {table.config.output_dim}, "
        f"and each must have an id, a time and a count. Received: {received}. Restore a checkpoint "
        "of this table."
    )


def missing_overflow(table: Table) -> str:
    """Returns the error message for shared rows and a table without a shared row."""
    return (
        "Rows shared by several ids can only be restored to a table with overflow='share'. "
        f"Received: shared rows for {table.config.name!r}, with overflow='error'. Set "
        "overflow='share'."
    )
