"""A table's rows as plain arrays, of one worker or of all, and rows made from them again.

By name: `ids`; `rows`, `slot/<name>` for each slot variable, `times` and `touches`, all in the
order of the ids; `refused_ids` and `refused_counts`, or `sketch`, of ids without a row. Of the
rows that ids share, one a worker: `overflow_rows`, `overflow_slot_<name>` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from strategies.alone import is_alone
from strategies.collectives import Collectives
from strategies.embedding.admission import ExactCounter, SketchCounter
from strategies.embedding.exchange import Exchange
from strategies.embedding.table import Table
from strategies.row_array import Rows

Arrays = dict[str, np.ndarray]
SLOT = "slot/"
OVERFLOW = "overflow_"


def arrays_of(table: Table, since: int | None = None) -> Arrays:
    """Returns this worker's part of a table.

    Args:
      table: the table.
      since: a step; of rows that were not trained on after it, nothing but the id is returned,
        among `present_ids`. None returns all rows.
    """
    ids, rows = (each.numpy() for each in table.map.all())
    order = np.argsort(ids)
    ids, rows = ids[order], rows[order]
    arrays: Arrays = {}
    if since is not None:
        arrays["present_ids"] = ids
        newer = table.store.times.gather(tf.constant(rows)).numpy() > since
        ids, rows = ids[newer], rows[newer]
    arrays["ids"] = ids
    for name, array in _by_row(table).items():
        arrays[name] = array.gather(tf.constant(rows)).numpy()
        if table.overflow is not None:
            key = OVERFLOW + name.replace("/", "_")
            arrays[key] = array.gather(table.overflow.row()).numpy()
    if isinstance(table.counter, ExactCounter):
        refused, counts = table.counter.map.all()
        arrays |= {"refused_ids": refused.numpy(), "refused_counts": counts.numpy()}
    elif isinstance(table.counter, SketchCounter):
        arrays["sketch"] = table.counter.own()
    return arrays


def everyones(arrays: Mapping[str, np.ndarray], collectives: Collectives) -> Arrays:
    """Returns a table's arrays of all workers, from what each of them has.

    Raises:
      ValueError: if one worker alone calls it, in a callback of the first worker.
    """
    if collectives.size > 1 and is_alone():
        raise ValueError(
            "Each worker has a part of an embedding, so all of them save together. Received: "
            "a callback of the first worker. Pass ModelCheckpoint to fit as it is, with "
            "strategies.own_path(path, strategy), or use the layer's save_rows."
        )
    result = {}
    for name in sorted(arrays):
        mine = tf.constant(arrays[name])
        if name == "sketch":
            # Each worker counts other ids: the sum is what one worker would have counted.
            result[name] = collectives.all_reduce([mine])[0].numpy()
        else:
            result[name] = collectives.all_gather(mine).numpy()
    return result


def packed(tables: Mapping[str, Table], collectives: Collectives) -> Arrays:
    """Returns all tables' arrays of all workers, which all call it, and their steps."""
    arrays: Arrays = {}
    for position, table in enumerate(tables.values()):
        whole = everyones(arrays_of(table), collectives)
        whole["step"] = table.store.step.numpy()
        arrays |= {f"{position}/{name}": array for name, array in whole.items()}
    return arrays


def unpack(
    tables: Mapping[str, Table], arrays: Mapping[str, np.ndarray], exchange: Exchange
) -> None:
    """Sets all rows to what `packed` returned.

    Raises:
      ValueError: if it was of other tables.
    """
    clear(tables)
    for position, table in enumerate(tables.values()):
        prefix = f"{position}/"
        own = {
            name.removeprefix(prefix): array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        table.store.step.assign(own.pop("step"))
        put(table, own, exchange)


def clear(tables: Mapping[str, Table]) -> None:
    """Forgets all rows and counts."""
    for table in tables.values():
        table.map.remove(table.map.all()[0])
        if isinstance(table.counter, ExactCounter):
            table.counter.map.remove(table.counter.map.all()[0])
        elif isinstance(table.counter, SketchCounter):
            table.counter.restore(np.zeros_like(table.counter.table.numpy()), is_first=True)
        table.store.clear()
    for table in tables.values():
        if table.overflow is not None:
            table.overflow.open()


def put(table: Table, arrays: Mapping[str, np.ndarray], exchange: Exchange) -> None:
    """Sets rows from arrays, those that this worker owns; ids that had rows keep them.

    Slot variables that the optimizer has not made yet are set when it makes them.

    Raises:
      ValueError: if the arrays do not fit the table.
    """
    width = table.config.output_dim
    if arrays["rows"].shape != (len(arrays["ids"]), width):
        raise ValueError(
            f"The table {table.config.name!r} has rows of {width} numbers, one for each id. "
            f"Received: rows of shape {arrays['rows'].shape} for {len(arrays['ids'])} ids."
        )
    mine = exchange.is_mine(tf.constant(arrays["ids"], tf.int64)).numpy()
    ids = tf.constant(arrays["ids"][mine], tf.int64)
    if "present_ids" in arrays:
        _remove_others(table, arrays["present_ids"])
    rows = table.map.find(ids)
    missing = tf.where(rows < 0)[:, 0]
    new = table.store.allocated(tf.size(missing, tf.int64))
    table.map.insert(tf.gather(ids, missing), new)
    rows = tf.tensor_scatter_nd_update(rows, missing[:, tf.newaxis], new)
    by_row = _by_row(table)
    for name, values in arrays.items():
        if name in by_row:
            by_row[name].resize(table.store.view.length.read_value())
            by_row[name].update(rows, tf.constant(values[mine]))
        elif name.startswith(SLOT):
            slot = table.store.expected_slot(name.removeprefix(SLOT))
            slot.resize(table.store.view.length.read_value())
            slot.update(rows, tf.constant(values[mine]))
    _put_overflow(table, arrays, exchange.collectives.rank)
    _put_refused(table, arrays, exchange)


def _put_overflow(table: Table, arrays: Mapping[str, np.ndarray], rank: int) -> None:
    """Sets the row that ids share, to that of the same worker or, of fewer ones, of another."""
    given = {
        name.removeprefix(OVERFLOW): values
        for name, values in arrays.items()
        if name.startswith(OVERFLOW)
    }
    if not given:
        return
    if table.overflow is None:
        raise ValueError(
            "Rows that ids share are restored to a table whose ids may share one. Received: such "
            f"rows for {table.config.name!r}, with overflow='error'. Choose overflow='share'."
        )
    by_row = _by_row(table)
    for name, values in given.items():
        slot = name.removeprefix("slot_")
        array = by_row[name] if slot == name else table.store.expected_slot(slot)
        array.resize(table.store.view.length.read_value())
        place = rank % len(values)
        array.update(table.overflow.row(), tf.constant(values[place : place + 1]))


def _remove_others(table: Table, present: np.ndarray) -> None:
    ids, rows = (each.numpy() for each in table.map.all())
    gone = ~np.isin(ids, present)
    table.remove(tf.constant(ids[gone]), tf.constant(rows[gone]))


def _put_refused(table: Table, arrays: Mapping[str, np.ndarray], exchange: Exchange) -> None:
    if isinstance(table.counter, ExactCounter) and "refused_ids" in arrays:
        ids = tf.constant(arrays["refused_ids"], tf.int64)
        mine = exchange.is_mine(ids)
        table.counter.map.remove(table.counter.map.all()[0])
        counts = tf.constant(arrays["refused_counts"], tf.int64)
        table.counter.map.insert(tf.boolean_mask(ids, mine), tf.boolean_mask(counts, mine))
    if isinstance(table.counter, SketchCounter) and "sketch" in arrays:
        table.counter.restore(arrays["sketch"], exchange.collectives.rank == 0)


def _by_row(table: Table) -> dict[str, Rows]:
    store = table.store
    slots = {SLOT + name: slot for name, slot in store.slots().items()}
    for slot in slots.values():
        slot.resize(store.view.length.read_value())
    return {
        "rows": store.variable.table,
        "times": store.times,
        "touches": store.touches,
        **slots,
    }
