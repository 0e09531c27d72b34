"""A table's rows as plain arrays, of one worker or of all, and rows made from them again.

By name: `ids`; `rows`, `slot/<name>` for each slot variable, `times` and `touches`, all in the
order of `ids`; `refused_ids` and `refused_counts`, or `sketch`, of ids without a row. Of the
rows that ids share, one a worker: `overflow_rows`, `overflow_slot_<name>` and so on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.embedding.shard.admission import ExactCounter, SketchCounter
from strategies.embedding.shard.shard import TableShard
from strategies.embedding.shard.table import Table

Arrays = dict[str, np.ndarray]


class Column(Protocol):
    """A number, or several, of each row."""

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns those of rows."""

    def update(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Sets those of rows, each named once."""

    def resize(self, length: tf.Tensor) -> None:
        """Sees to it that there are so many rows, or more."""


SLOT = "slot/"
OVERFLOW = "overflow_"
PRESENT = "present_ids"
# What is gathered at once, and what one message to a server or from it has.
_PIECE_BYTES = 1 << 24


def arrays_of(homes: Sequence[TableShard], name: str) -> Arrays:
    """Returns this worker's part of a table, all of it.

    Args:
      homes: where the rows are.
      name: of the table.
    """
    rows = joined(list(pieces_of(homes, name)))
    order = np.argsort(rows["ids"])
    return {**{key: array[order] for key, array in rows.items()}, **others_of(homes, name)}


def rows_of(homes: Sequence[TableShard], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns this worker's ids of a table in rising order, and their rows."""
    arrays = joined(list(pieces_of(homes, name, only=("rows",))))
    order = np.argsort(arrays["ids"])
    return arrays["ids"][order], arrays["rows"][order]


def pieces_of(
    homes: Sequence[TableShard],
    name: str,
    since: int | None = None,
    only: Sequence[str] | None = None,
    everyones: bool = False,
) -> Iterator[Arrays]:
    """Yields this worker's rows of a table in pieces of a bounded size, one at least a place.

    Args:
      homes: where the rows are.
      name: of the table.
      since: a step; of rows that were not trained on after it, nothing but the id is returned,
        among `present_ids`. None returns all rows.
      only: names of the arrays; None is all of them.
      everyones: whether to return the rows of all places, also those that others save.
    """
    for home in homes:
        table = home.tables[name]
        ids = numbers = np.zeros([0], np.int64)
        if home.is_mine or everyones:
            ids, numbers = home.call(("all", name), table.map.all)
        if table.config.is_replicated and not everyones:
            owned = home.owns(ids)
            ids, numbers = ids[owned], numbers[owned]
        for part in _pieces(len(ids), table):
            piece = {} if since is None else {PRESENT: ids[part]}
            some_ids, some = ids[part], numbers[part]
            if since is not None:
                newer = home.call(("times", name), table.store.marks.times.gather, some) > since
                some_ids, some = some_ids[newer], some[newer]
            yield {**piece, "ids": some_ids, **_columns(home, table, some, only)}


def _columns(
    home: TableShard, table: Table, numbers: np.ndarray, only: Sequence[str] | None = None
) -> Arrays:
    def columns(numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        by_row = _by_row(table)
        return {key: by_row[key].gather(numbers) for key in only or by_row}

    called = ("columns", table.config.name, only, *table.store.slots())
    return home.call(called, columns, numbers)


def others_of(homes: Sequence[TableShard], name: str) -> Arrays:
    """Returns what this worker has of a table beside rows of ids: counts, and shared rows."""
    return joined([_others(home, home.tables[name]) for home in homes])


def _others(home: TableShard, table: Table) -> Arrays:
    counter, overflow, name = table.counter, table.overflow, table.config.name

    def counted(is_mine: tf.Tensor) -> dict[str, tf.Tensor]:
        times = tf.cast(is_mine, tf.int32)
        if isinstance(counter, SketchCounter):
            return {"sketch": counter.own() * times}
        if not isinstance(counter, ExactCounter):
            return {}
        refused = zip(("ids", "counts"), counter.map.all(), strict=True)
        return {f"refused_{key}": tf.repeat(each, times) for key, each in refused}

    others = {}
    if counter is not None:
        others = home.call(("counted", name), counted, np.bool_(home.is_mine))
    if overflow is not None:
        row = home.call(("shared", name), overflow.row)
        shared = _columns(home, table, row)
        others |= {OVERFLOW + key.replace("/", "_"): each for key, each in shared.items()}
    return others


def _pieces(count: int, table: Table) -> list[slice]:
    """Returns the places of so many rows in pieces that are moved at once, one at least."""
    step = max(_PIECE_BYTES // table.store.row_bytes(), 1)
    return [slice(start, start + step) for start in range(0, max(count, 1), step)]


def is_of_rows(key: str) -> bool:
    """Returns whether an array of this name is in the order of `ids`, or is these."""
    return key in ("ids", "rows", "times", "touches") or key.startswith(SLOT)


def is_other(key: str) -> bool:
    """Returns whether `others_of` gives an array of this name."""
    return key != PRESENT and not is_of_rows(key)


def joined(parts: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """Returns the arrays of several places as those of one."""
    result = {}
    for name in {name for part in parts for name in part}:
        arrays = [part[name] for part in parts if name in part]
        # Each place counts other ids: the sum is what one place would have counted.
        result[name] = sum(arrays[1:], arrays[0]) if name == "sketch" else np.concatenate(arrays)
    return result


def everyones(arrays: Mapping[str, np.ndarray], collectives: Collectives) -> Arrays:
    """Returns a table's arrays of all workers, from what each of them has.

    Raises:
      ValueError: if one worker alone calls it, in a callback of the first worker.
    """
    if collectives.size > 1 and in_single_worker_scope():
        raise ValueError(
            "Each worker has a part of an embedding, so all of them save together. Received: "
            "a callback of the first worker. Pass ModelCheckpoint to fit as it is, with "
            "strategies.own_path(path, strategy), or use the layer's save_rows."
        )
    result = {}
    for name in sorted(arrays):
        mine = tf.constant(arrays[name])
        if name == "sketch":
            result[name] = collectives.all_reduce([mine])[0].numpy()
        else:
            result[name] = collectives.all_gather(mine).numpy()
    return result


def step_of(home: TableShard, name: str) -> np.ndarray:
    """Returns in which step a table is, int64."""
    table = home.tables[name]
    return home.call(("step", table.store.width), table.store.step.read_value)


def set_step(homes: Sequence[TableShard], name: str, step: int) -> None:
    """Sets in which step a table is."""
    for home in homes:
        store = home.tables[name].store
        home.call(("set step", store.width), store.set_step, np.int64(step))


def packed(homes: Sequence[TableShard], collectives: Collectives) -> Arrays:
    """Returns all tables' arrays of all workers, which all call it, and their steps."""
    arrays: Arrays = {}
    for position, name in enumerate(homes[0].tables):
        whole = everyones(arrays_of(homes, name), collectives)
        whole["step"] = step_of(homes[0], name)
        arrays |= {f"{position}/{key}": array for key, array in whole.items()}
    return arrays


def unpack(homes: Sequence[TableShard], arrays: Mapping[str, np.ndarray]) -> None:
    """Sets all rows to what `packed` returned, in the places that this worker restores.

    Raises:
      ValueError: if it was of other tables.
    """
    clear(homes)
    for position, name in enumerate(homes[0].tables if homes else ()):
        prefix = f"{position}/"
        own = {
            key.removeprefix(prefix): array
            for key, array in arrays.items()
            if key.startswith(prefix)
        }
        set_step(homes, name, int(own.pop("step")))
        for home in homes:
            put(home, name, own)
            put_others(home, name, own)


def clear(homes: Sequence[TableShard]) -> None:
    """Forgets all rows and counts."""
    for home in homes:
        for name, table in home.tables.items():
            key = ("clear", name, *table.store.slots())
            home.call(key, functools.partial(_clear, table))
            table.store.forget_expected()
        for table in home.tables.values():
            if table.overflow is not None:
                table.overflow.open()


def _clear(table: Table) -> None:
    table.map.remove(table.map.all()[0])
    if table.counter is not None:
        table.counter.clear()
    table.store.clear()


def check(table: Table, arrays: Mapping[str, np.ndarray]) -> None:
    """Checks that arrays may be set.

    Raises:
      ValueError: if they do not fit the table.
    """
    width = table.config.output_dim
    if arrays["rows"].shape != (len(arrays["ids"]), width):
        raise ValueError(
            f"The table {table.config.name!r} has rows of {width} numbers, one for each id. "
            f"Received: rows of shape {arrays['rows'].shape} for {len(arrays['ids'])} ids."
        )


def put(home: TableShard, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Sets rows from arrays, those that belong here; ids that had rows keep them.

    Slot variables that the optimizer has not made yet are set when it makes them.

    Raises:
      ValueError: if the arrays do not fit the table.
    """
    table = home.tables[name]
    check(table, arrays)
    for key in arrays:
        if key.startswith(SLOT):
            home.expect(table.store, key.removeprefix(SLOT))
    mine = np.flatnonzero(home.has(name, arrays["ids"]))
    names = [key for key in arrays if key != "ids" and is_of_rows(key)]

    def set_all(ids: tf.Tensor, *columns: tf.Tensor) -> None:
        rows = _rows_for(table, ids)
        by_row = _by_row(table)
        for key, values in zip(names, columns, strict=True):
            by_row[key].resize(table.store.view.length.read_value())
            by_row[key].update(rows, values)

    called = ("put", name, *names, *table.store.slots())
    for part in _pieces(len(mine), table):
        some = mine[part]
        home.call(called, set_all, arrays["ids"][some], *(arrays[key][some] for key in names))


def put_others(home: TableShard, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Sets counts and shared rows from arrays of all workers, as far as they belong here.

    Raises:
      ValueError: if the arrays do not fit the table.
    """
    table = home.tables[name]
    _put_overflow(home, table, arrays)
    _put_refused(home, table, arrays)


def _put_overflow(home: TableShard, table: Table, arrays: Mapping[str, np.ndarray]) -> None:
    """Sets the row that ids share, to that of the same worker or, of fewer ones, of another."""
    given = {
        name.removeprefix(OVERFLOW).replace("slot_", SLOT, 1): values
        for name, values in arrays.items()
        if name.startswith(OVERFLOW)
    }
    if not given:
        return
    overflow = table.overflow
    if overflow is None:
        raise ValueError(
            "Rows that ids share are restored to a table whose ids may share one. Received: such "
            f"rows for {table.config.name!r}, with overflow='error'. Choose overflow='share'."
        )
    for name in given:
        if name.startswith(SLOT):
            home.expect(table.store, name.removeprefix(SLOT))

    def set_row(*rows: tf.Tensor) -> None:
        by_row = _by_row(table)
        for name, row in zip(given, rows, strict=True):
            by_row[name].resize(table.store.view.length.read_value())
            by_row[name].update(overflow.row(), row)

    mine = [values[home.number % len(values)][np.newaxis] for values in given.values()]
    home.call(("put shared", table.config.name, *given), set_row, *mine)


def _rows_for(table: Table, ids: tf.Tensor) -> tf.Tensor:
    """Returns rows of ids, made for those that had none."""
    rows = table.map.find(ids)
    missing = tf.where(rows < 0)[:, 0]
    new = table.store.allocated(tf.size(missing, tf.int64))
    table.map.insert(tf.gather(ids, missing), new)
    return tf.tensor_scatter_nd_update(rows, missing[:, tf.newaxis], new)


def keep(home: TableShard, name: str, present: np.ndarray) -> None:
    """Takes away the rows of all ids but these."""
    table = home.tables[name]
    ids, rows = home.call(("all", name), table.map.all)
    gone = ~np.isin(ids, present)
    home.call(("remove", name, *table.store.slots()), table.remove, ids[gone], rows[gone])


def _put_refused(home: TableShard, table: Table, arrays: Mapping[str, np.ndarray]) -> None:
    counter, name = table.counter, table.config.name
    if counter is not None and "refused_ids" in arrays:
        mine = home.owns(arrays["refused_ids"])
        columns = arrays["refused_ids"][mine], arrays["refused_counts"][mine]

        def set_all(ids: tf.Tensor, counts: tf.Tensor) -> None:
            counter.clear()
            counter.added(ids, counts)

        home.call(("put refused", name), set_all, *columns)
    if isinstance(counter, ExactCounter) and "sketch" in arrays:
        raise ValueError(
            "A sketch does not say of which ids it is, so it is restored to a sketch. Received: "
            f"one for {name!r}, whose admission has memory=None. Give it the memory that it was "
            "saved with."
        )
    if isinstance(counter, SketchCounter) and "sketch" in arrays:
        counter.check(arrays["sketch"])

        def restore(total: tf.Tensor) -> None:
            counter.restore(total, is_first=home.number == 0)

        home.call(("put sketch", name), restore, arrays["sketch"])


def _by_row(table: Table) -> dict[str, Column]:
    store = table.store
    slots = {SLOT + name: slot for name, slot in store.slots().items()}
    for slot in slots.values():
        slot.resize(store.view.length.read_value())
    return {
        "rows": store.variable.table,
        "times": store.marks.times,
        "touches": store.marks.touches,
        **slots,
    }
