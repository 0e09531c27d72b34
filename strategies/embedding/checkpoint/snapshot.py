"""Snapshots of tables as the NumPy arrays of `array_specs`, from one worker or all workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.diagnostics.consistency import check_same_call
from strategies.embedding.checkpoint.array_specs import (
    INITIAL,
    OVERFLOW,
    PRESENT,
    SLOT,
    TIMES,
    check,
    is_of_one_worker,
    is_row_array,
    missing_overflow,
)
from strategies.embedding.shard.admission import ExactCounter, SketchCounter
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.table import Table
from strategies.embedding.shard.table_shard import TableShard

Arrays = dict[str, np.ndarray]


class Column(Protocol):
    """Column of one value for each row."""

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the values of rows."""

    def update(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Sets the values of distinct rows."""

    def resize(self, length: tf.Tensor) -> None:
        """Grows to at least `length` rows."""


# Size of the rows that are gathered at once, and of one message to or from a server.
CHUNK_BYTES = 1 << 24


def table_arrays(shards: Sequence[TableShard], name: str) -> Arrays:
    """Returns all arrays of a table from the shards that this worker owns.

    Args:
      shards: shards of the tables.
      name: name of the table.
    """
    rows = concatenate_arrays([chunk.arrays() for chunk in row_chunks(shards, name)])
    order = np.argsort(rows["ids"])
    return {**{key: array[order] for key, array in rows.items()}, **extra_arrays(shards, name)}


def ids_and_rows(shards: Sequence[TableShard], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns this worker's ids of a table in ascending order, and their rows."""
    chunks = row_chunks(shards, name)
    arrays = concatenate_arrays([chunk.arrays(only=("rows",)) for chunk in chunks])
    order = np.argsort(arrays["ids"])
    return arrays["ids"][order], arrays["rows"][order]


@dataclass(frozen=True)
class RowChunk:
    """Some rows of a shard of a table, whose values have not been read yet.

    Attributes:
      shard: the shard.
      name: name of the table.
      ids: the ids of the rows.
      numbers: the numbers of the rows.
      present: in a delta, the ids of the rows that the chunk was selected from; otherwise None.
      grows: whether slot variables may be grown; see `_columns_of`.
    """

    shard: TableShard
    name: str
    ids: np.ndarray
    numbers: np.ndarray
    present: np.ndarray | None
    grows: bool

    @property
    def table(self) -> Table:
        """The shard of the table."""
        return self.shard.tables[self.name]

    @property
    def state(self) -> Iterable[Hashable]:
        """What the graph of `reader` depends on; see `TableShard.call`."""
        return self.table.store.saved_slots().items()

    def without_rows(self) -> RowChunk:
        """Returns a chunk without any rows, which has all columns."""
        return replace(self, ids=self.ids[:0], numbers=self.numbers[:0], present=None)

    def columns(self) -> list[str]:
        """Returns the names of the columns, in the order of `array_specs`."""
        slots = [SLOT + name for name in self.table.store.saved_slots()]
        return ["rows", "times", "touches", *slots]

    def reader(self, columns: Sequence[str]) -> Callable[[tf.Tensor], list[tf.Tensor]]:
        """Returns a function that reads columns of rows, given their numbers."""
        return _reader(self.table.store, tuple(columns), self.grows)

    def arrays(self, only: Sequence[str] | None = None) -> Arrays:
        """Returns the ids, and the columns of these names; None is all columns."""
        names = self.columns() if only is None else only
        read = self.shard.call(self.reader(names), self.numbers, state=self.state, idempotent=True)
        chunk = {} if self.present is None else {PRESENT: self.present}
        return {**chunk, "ids": self.ids, **dict(zip(names, read, strict=True))}


def row_chunks(
    shards: Sequence[TableShard],
    name: str,
    since: int | None = None,
    of_all_owners: bool = False,
    lengths: Mapping[int, int] | None = None,
    chunk_bytes: Callable[[TableShard], int] = lambda _: CHUNK_BYTES,
) -> Iterator[RowChunk]:
    """Yields a table's rows in chunks of bounded size, at least one for each shard.

    Args:
      shards: shards of the tables.
      name: name of the table.
      since: step after which rows must have been trained on. Of the other rows, there are only the
        ids, in `present`. None is all rows.
      of_all_owners: whether to include shards that other workers own.
      lengths: for a save while training goes on, the number of rows of each shard that
        `grow_columns` returned. Rows that were added since are left out, because their values may
        not exist yet in all columns.
      chunk_bytes: returns the size of a shard's chunks.
    """
    for shard in shards:
        table = shard.tables[name]
        ids = numbers = np.zeros([0], np.int64)
        if shard.is_local_owner or of_all_owners:
            ids, numbers = shard.call_on_table(name, Table.all, idempotent=True)
        if table.config.is_replicated and not of_all_owners:
            owned = shard.owns(ids)
            ids, numbers = ids[owned], numbers[owned]
        if lengths is not None:
            there = numbers < lengths[shard.index]
            ids, numbers = ids[there], numbers[there]
        for part in slices_of(len(ids), table, chunk_bytes(shard)):
            present = None if since is None else ids[part]
            some_ids, some = ids[part], numbers[part]
            if since is not None:
                last_step = table.store.metadata.last_step
                gathered = shard.call(last_step.gather, some, idempotent=True)
                newer = gathered > since
                some_ids, some = some_ids[newer], some[newer]
            yield RowChunk(shard, name, some_ids, some, present, grows=lengths is None)


def grow_columns(shards: Sequence[TableShard], name: str) -> dict[int, int]:
    """Grows the slot variables of a table to the length of its rows; returns it, by the shard."""

    def grow(store: RowStore) -> tf.Tensor:
        _columns_of(store)
        return store.view.length.read_value()

    lengths = {}
    for shard in shards:
        store = shard.tables[name].store
        slots = store.saved_slots().items()
        lengths[shard.index] = int(shard.call(functools.partial(grow, store), state=slots))
    return lengths


def _reader(
    store: RowStore, names: Sequence[str], grows: bool
) -> Callable[[tf.Tensor], list[tf.Tensor]]:
    def gather(numbers: tf.Tensor) -> list[tf.Tensor]:
        columns = _columns_of(store, grows)
        return [columns[key].gather(numbers) for key in names]

    return gather


def extra_arrays(shards: Sequence[TableShard], name: str) -> Arrays:
    """Returns a table's counts, shared rows and initial values of slot variables."""
    return concatenate_arrays([_extra(shard, shard.tables[name]) for shard in shards])


def _extra(shard: TableShard, table: Table) -> Arrays:
    counter, overflow = table.counter, table.overflow

    def counts(is_local_owner: tf.Tensor) -> dict[str, tf.Tensor]:
        # The arrays of all workers are summed or concatenated, and each reaches all servers: a
        # shard's counts come from its owner only.
        times = tf.cast(is_local_owner, tf.int32)
        if isinstance(counter, SketchCounter):
            return {"sketch": counter.local_counts() * times}
        if not isinstance(counter, ExactCounter):
            return {}
        refused = zip(("ids", "counts"), counter.map.all(), strict=True)
        return {f"refused_{key}": tf.repeat(each, times) for key, each in refused}

    extra = initial_arrays(table)
    times = table.evictor.times
    if times is not None:
        extra[TIMES] = shard.call(times.pairs, idempotent=True)
    if counter is not None:
        extra |= shard.call(counts, np.bool_(shard.is_local_owner), idempotent=True)
    if overflow is not None:
        row = shard.call(overflow.row, idempotent=True)
        shared = RowChunk(shard, table.config.name, row, row, None, grows=True).arrays()
        shared.pop("ids")
        extra |= {OVERFLOW + key.replace("/", "_"): each for key, each in shared.items()}
    return extra


def initial_arrays(table: Table) -> Arrays:
    """Returns the initial values of a table's slot variables."""
    slots = table.store.slots()
    return {
        f"{INITIAL}slot_{slot}": np.array(slots[key].fill, np.float32)[np.newaxis]
        for slot, key in table.store.saved_slots().items()
    }


def slices_of(count: int, table: Table, size: int = CHUNK_BYTES) -> list[slice]:
    """Returns the slices of `count` rows for chunks of `size` bytes, at least one."""
    step = max(size // table.store.row_bytes(), 1)
    return [slice(start, start + step) for start in range(0, max(count, 1), step)]


def concatenate_arrays(parts: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """Concatenates the arrays of shards; sketches are summed, and what is equal taken from one."""
    result = {}
    for name in {name for part in parts for name in part}:
        arrays = [part[name] for part in parts if name in part]
        # Shards count different ids, so the sum is the sketch of all ids.
        if name == "sketch":
            result[name] = sum(arrays[1:], arrays[0])
        else:
            result[name] = arrays[0] if is_of_one_worker(name) else np.concatenate(arrays)
    return result


def gather_all(arrays: Mapping[str, np.ndarray], collectives: Collectives) -> Arrays:
    """Gathers a table's arrays from all workers; all workers must call it.

    Raises:
      ValueError: if only the first worker calls it, in a callback.
    """
    if collectives.size > 1 and in_single_worker_scope():
        raise ValueError(
            "All workers must save an embedding together, because each has a part of it. Received: "
            "a callback that runs on the first worker only. Pass ModelCheckpoint to fit without "
            "on_first_worker, with strategies.own_path(path, strategy), or use the layer's "
            "save_rows."
        )
    result = {}
    for name in sorted(arrays):
        array = arrays[name]
        if name == "sketch":
            result[name] = collectives.all_reduce([tf.constant(array)])[0].numpy()
        else:
            is_left_out = is_of_one_worker(name) and collectives.rank > 0
            array = array[:0] if is_left_out else array
            result[name] = collectives.all_gather(tf.constant(array)).numpy()
    return result


def step_of(shard: TableShard, name: str) -> np.ndarray:
    """Returns the number of training steps of a table, int64."""
    return shard.call(shard.tables[name].store.step.read_value, idempotent=True)


def set_step(shards: Sequence[TableShard], name: str, step: int) -> None:
    """Sets the number of training steps of a table."""
    for shard in shards:
        shard.call(shard.tables[name].store.set_step, np.int64(step))


def find_former_slots(shards: Sequence[TableShard]) -> None:
    """Makes sure that a save leaves out the slot variables of deleted optimizers."""
    for lookup in shards[0].lookups.values():
        lookup.variable.find_former_slots()


def check_same_slots(shards: Sequence[TableShard], collectives: Collectives) -> None:
    """Checks that all workers have the same slot variables for the tables; all must call it.

    They may differ since each worker removes the slot variables of a former optimizer by itself.

    Raises:
      ValueError: if the slot variables differ; on all workers.
    """
    slots = {name: sorted(table.store.saved_slots()) for name, table in shards[0].tables.items()}
    check_same_call(collectives, "saving rows", f"optimizer state {slots}")


def take(shards: Sequence[TableShard], collectives: Collectives) -> Arrays:
    """Takes a snapshot of all tables on all workers; all workers must call it.

    Raises:
      ValueError: if the slot variables of workers differ.
    """
    find_former_slots(shards)
    if not in_single_worker_scope():
        check_same_slots(shards, collectives)
    arrays: Arrays = {}
    for position, name in enumerate(shards[0].tables):
        whole = gather_all(table_arrays(shards, name), collectives)
        whole["step"] = step_of(shards[0], name)
        arrays |= {f"{position}/{key}": array for key, array in whole.items()}
    return arrays


def restore(shards: Sequence[TableShard], arrays: Mapping[str, np.ndarray]) -> None:
    """Restores a snapshot of all tables in the shards that this worker owns.

    Args:
      shards: all shards that this worker can access.
      arrays: the snapshot.

    Raises:
      ValueError: if the snapshot is that of other tables.
    """
    tables = list(shards[0].tables)
    of_tables = [_of_table(arrays, position) for position in range(len(tables))]
    for name, own in zip(tables, of_tables, strict=True):
        check(shards[0].tables[name], own)
    if len({key.partition("/")[0] for key in arrays}) > len(tables):
        raise ValueError(
            "A layer must have the tables that its rows were saved from. Received: more than "
            f"{len(tables)} saved tables, for {', '.join(map(repr, tables))}. Create the layer "
            "with the saved configuration."
        )
    clear(shards)
    local = [shard for shard in shards if shard.is_local_owner]
    for name, own in zip(tables, of_tables, strict=True):
        set_step(local, name, int(own.pop("step")))
        expect_slots(shards, name, own, own)
        for shard in local:
            restore_rows(shard, name, own)
            restore_extra(shard, name, own)


def _of_table(arrays: Mapping[str, np.ndarray], position: int) -> Arrays:
    prefix = f"{position}/"
    return {
        key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)
    }


def clear(shards: Sequence[TableShard]) -> None:
    """Removes all rows and counts of the shards that this worker owns.

    Args:
      shards: all shards that this worker can access.
    """
    local = [shard for shard in shards if shard.is_local_owner]
    for shard in local:
        shard.forget_former_slots()
        for name, table in shard.tables.items():
            shard.call_on_table(name, _clear, state=table.store.slots())
    for shard in shards:
        for table in shard.tables.values():
            table.store.forget_expected_slots()
    for shard in local:
        for table in shard.tables.values():
            if table.overflow is not None:
                table.overflow.allocate_row()


def _clear(table: Table) -> None:
    table.map.remove(table.map.all()[0])
    if table.counter is not None:
        table.counter.clear()
    if table.evictor.times is not None:
        table.evictor.times.clear()
    table.store.clear()


def check_shapes(table: Table, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError if the shape of rows does not fit a table."""
    width = table.config.output_dim
    if arrays["rows"].shape != (len(arrays["ids"]), width):
        raise ValueError(
            f"The rows of the table {table.config.name!r} must have width {width}, one for each "
            f"id. Received: rows of shape {arrays['rows'].shape} for {len(arrays['ids'])} ids."
        )


def expect_slots(
    shards: Sequence[TableShard],
    name: str,
    keys: Iterable[str],
    extra: Mapping[str, np.ndarray],
) -> None:
    """Creates slot variables, with their initial values, that the optimizer has not created yet.

    Rows without saved values of a slot variable get its initial value. Arrays of version 0.1.0
    have no initial values.

    Args:
      shards: all shards that this worker can access. It may come to save those that it does not
        own, and all workers compare the slot variables of the first one.
      name: name of the table.
      keys: names of the arrays of rows to be restored.
      extra: the other arrays to be restored.
    """
    prefix = f"{INITIAL}slot_"
    initial = {key.removeprefix(prefix): extra[key][0] for key in extra if key.startswith(prefix)}
    for key in (*keys, *extra):
        if key.startswith(SLOT):
            initial.setdefault(key.removeprefix(SLOT), 0.0)
        if key.startswith(f"{OVERFLOW}slot_"):
            initial.setdefault(key.removeprefix(f"{OVERFLOW}slot_"), 0.0)
    for shard in shards:
        for slot, value in initial.items():
            shard.expect_slot(shard.tables[name].store, slot, value)


def without_missing_slots(
    shards: Sequence[TableShard], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the arrays of a snapshot without the slot variables that do not exist.

    Keras skips an optimizer that is not built yet when it loads a file, with a warning. With the
    state of the rows alone, training would go on from half of the optimizer's state.
    """
    kept = dict(arrays)
    for position, table in enumerate(shards[0].tables.values()):
        table.store.variable.find_former_slots()
        there = {
            name
            for name, key in table.store.saved_slots().items()
            if not table.store.variable.is_former_slot(key)
        }
        for key in arrays:
            number, _, rest = key.partition("/")
            for prefix in (SLOT, f"{OVERFLOW}slot_", f"{INITIAL}slot_"):
                is_slot = number == str(position) and rest.startswith(prefix)
                if is_slot and rest.removeprefix(prefix) not in there:
                    kept.pop(key, None)
    return kept


def restore_rows(shard: TableShard, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Sets the values of the rows that belong to a shard; rows are created for new ids.

    Slot variables among the arrays exist already, or are expected; see `expect_slots`.

    Raises:
      ValueError: if the arrays do not fit the table.
    """
    table = shard.tables[name]
    check_shapes(table, arrays)
    own = np.flatnonzero(shard.has(name, arrays["ids"]))
    # Sorted, because files are listed in any order, and each order would be a graph of its own.
    names = sorted(key for key in arrays if key != "ids" and is_row_array(key))

    def set_all(table: Table, ids: tf.Tensor, *values: tf.Tensor) -> None:
        rows = _find_or_insert(table, ids)
        columns = _columns_of(table.store)
        for key, each in zip(names, values, strict=True):
            columns[key].resize(table.store.view.length.read_value())
            columns[key].update(rows, each)

    slots = table.store.saved_slots().items()
    for part in slices_of(len(own), table):
        some = own[part]
        values = (arrays[key][some] for key in names)
        shard.call_on_table(name, set_all, arrays["ids"][some], *values, state=slots)


def restore_extra(shard: TableShard, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Restores the counts, the shared row and the times of a shard from all workers' arrays.

    Raises:
      ValueError: if the arrays do not fit the table.
    """
    table = shard.tables[name]
    _restore_shared_row(shard, table, arrays)
    _restore_counts(shard, table, arrays)
    times = table.evictor.times
    if times is not None and TIMES in arrays:
        shard.call(times.restore, arrays[TIMES])


def _restore_shared_row(shard: TableShard, table: Table, arrays: Mapping[str, np.ndarray]) -> None:
    """Restores the same worker's shared row, or another's if fewer workers saved theirs."""
    given = {
        name.removeprefix(OVERFLOW).replace("slot_", SLOT, 1): values
        for name, values in arrays.items()
        if name.startswith(OVERFLOW)
    }
    if not given:
        return
    overflow, names = table.overflow, tuple(given)
    if overflow is None:
        raise ValueError(missing_overflow(table))

    def set_row(*rows: tf.Tensor) -> None:
        columns = _columns_of(table.store)
        for name, row in zip(names, rows, strict=True):
            columns[name].resize(table.store.view.length.read_value())
            columns[name].update(overflow.row(), row)

    own = [values[shard.index % len(values)][np.newaxis] for values in given.values()]
    shard.call(set_row, *own, state=table.store.saved_slots().items())


def _find_or_insert(table: Table, ids: tf.Tensor) -> tf.Tensor:
    """Returns the rows of ids, after inserting the ids without a row."""
    rows = table.map.find(ids)
    missing = tf.where(rows < 0)[:, 0]
    new = table.store.allocate(tf.size(missing, tf.int64))
    table.map.insert(tf.gather(ids, missing), new)
    return tf.tensor_scatter_nd_update(rows, missing[:, tf.newaxis], new)


def remove(shard: TableShard, name: str, ids: np.ndarray) -> None:
    """Removes the rows of ids; those without a row are ignored."""

    def remove_all(table: Table, ids: tf.Tensor) -> None:
        rows = table.map.find(ids)
        table.remove(tf.boolean_mask(ids, rows >= 0), tf.boolean_mask(rows, rows >= 0))

    shard.call_on_table(name, remove_all, ids, state=shard.tables[name].store.slots())


def retain(shard: TableShard, name: str, present: np.ndarray) -> None:
    """Removes the rows of all ids that are not in `present`."""
    table = shard.tables[name]
    ids, rows = shard.call_on_table(name, Table.all, idempotent=True)
    gone = ~np.isin(ids, present)
    slots = table.store.slots()
    shard.call_on_table(name, Table.remove, ids[gone], rows[gone], state=slots)


def _restore_counts(shard: TableShard, table: Table, arrays: Mapping[str, np.ndarray]) -> None:
    counter = table.counter
    if counter is not None and "refused_ids" in arrays:
        own = shard.owns(arrays["refused_ids"])
        columns = arrays["refused_ids"][own], arrays["refused_counts"][own]

        def set_all(ids: tf.Tensor, counts: tf.Tensor) -> None:
            counter.clear()
            counter.increment(ids, counts)

        shard.call(set_all, *columns)
    if isinstance(counter, SketchCounter) and "sketch" in arrays:

        def restore_sketch(total: tf.Tensor) -> None:
            counter.restore(total, is_first=shard.index == 0)

        shard.call(restore_sketch, arrays["sketch"])


def _columns_of(store: RowStore, grows: bool = True) -> dict[str, Column]:
    """Returns the columns of the rows of a group's tables by the names of their arrays.

    Args:
      store: store of the rows.
      grows: whether to grow the slot variables to the length of the rows. They must not grow while
        a step trains: what fills the new rows could overwrite what the step has written to them.
    """
    arrays = store.slots()
    slots = {SLOT + name: arrays[key] for name, key in store.saved_slots().items()}
    for slot in slots.values() if grows else ():
        slot.resize(store.view.length.read_value())
    return {
        "rows": store.variable.table,
        "times": store.metadata.last_step,
        "touches": store.metadata.frequency,
        **slots,
    }
