"""Rows that a worker trains itself between two exchanges with the parameter servers.

[Note: rows of the mode "geo"]
The servers hold all rows. A worker fetches a row, together with its slot variables, when it uses it
for the first time since the last exchange, and trains its copy with its own optimizer. At an
exchange, N workers apply the rule of `Geo` (ps/modes/geo.py) to the rows that they have:

* delta = (row - base) / N is added to the row on its server, where `base` is the value that was
  fetched. A sum of such changes does not depend on their order, so no worker waits for another.
* Each slot variable on the server becomes the mean of its value there and the worker's, in which
  the worker's has the weight 1/N.
* The worker keeps the rows that it has used since the exchange before, or as many as its cache
  holds, and forgets the others. If a row that it keeps is V on its server now, it becomes
  V + (1 - 1/N) (row - base) (of a row that was not used, V + row - base), with the base V and the
  slot variables of the server. The server sends those that were used, and of the others in the
  cache those that have changed since the exchange before. So by default a worker needs memory for
  the rows of 2 `geo_steps` steps, and not for all rows.

With one worker, the row on the server is the worker's after each exchange. With N workers, a row
that only one of them has used moves by 1/N of what this one has changed. The worker sends the rest
bit by bit at later exchanges, unless it forgets the row. PaddlePaddle's GEO has a copy of all rows
on each worker, so that nothing is lost, and works with SGD only, because its servers have no slot
variables.

Servers find rows by ids, and not by references (variables/row_view.py): an update that was computed
from an earlier value of a row is a change, which is as right for the row's present value. So a
server that was restarted gets the changes of rows that it has restored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.shard.id_map import IdMap
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.table_keys import TableKeys
from strategies.utils.devices import HOST
from strategies.variables.growable_array import GrowableArray
from strategies.variables.row_variable import RowVariable, new_name
from strategies.variables.row_view import RowView


class LocalRowVariable(RowVariable):
    """Variable of the rows that a worker trains itself, whose slot variables servers have as well.

    Args:
      width: width of a row.
      strategy: strategy that the variable is created under.
      make_slot: creates a slot variable on the servers, from its name and the initial row.
    """

    def __init__(
        self,
        width: int,
        strategy: tf.distribute.Strategy,
        make_slot: Callable[[str, np.ndarray], None],
    ):
        # A gradient may be applied after its row has been forgotten.
        view = RowView(counts_frees=True)
        super().__init__(view, np.zeros(width, np.float32), True, new_name(), strategy)
        self._make_slot = make_slot

    def live_slots(self) -> tuple[str, ...]:
        """Returns the names of the slot variables whose optimizer still exists."""
        return tuple(key for key in self.slots if not self.is_former_slot(key))

    def remove_former_slots(self) -> None:
        """Does nothing: slot variables on the servers belong to other workers as well.

        They are neither exchanged nor saved; see `live_slots` and `RowStore.saved_slots`.
        """

    def _new_slot(self, name: str, key: str, row: np.ndarray) -> RowVariable:
        self._make_slot(key, row)
        return super()._new_slot(name, key, row)


class ExchangedRows(NamedTuple):
    """Rows that a worker has when it exchanges them.

    Attributes:
      keys: number of the table, id and number of its occurrences that the servers do not know of,
        int64 [n, 3].
      rows: numbers of the rows, int64 [n].
      used: which of them were used since the last exchange, bool [n]; the others are not sent.
      kept: which of them the worker keeps, bool [n].
      deltas: differences of the used rows from the values on the servers that the worker knows,
        float32 tensor [number of used rows, width].
      slots: slot variables of the used rows, one beside the other, float32 [number of used rows,
        width * number of slot variables].
      others_are_used: whether rows were used that are not exchanged now, because they have a
        gradient that is still to be applied.
    """

    keys: np.ndarray
    rows: np.ndarray
    used: np.ndarray
    kept: np.ndarray
    deltas: tf.Tensor
    slots: np.ndarray
    others_are_used: bool


def take(array: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Returns the elements at ascending positions; if these are consecutive, without a copy.

    Most exchanges have all rows that a worker has, and with one server, in this order.

    >>> array = np.arange(5)
    >>> take(array, np.array([1, 3])).tolist(), take(array, np.array([1, 2, 3])).base is array
    ([1, 3], True)
    """
    count = len(positions)
    if count and positions[-1] - positions[0] == count - 1:
        return array[positions[0] : positions[-1] + 1]
    return array[positions]


class LocalRows:
    """Rows of a group of tables that this worker trains itself; see the module.

    Args:
      tables: number of tables.
      variable: variable of the rows, as seen by the optimizer.

    Attributes:
      store: store of the rows.
    """

    def __init__(self, tables: int, variable: LocalRowVariable):
        self.store = RowStore(variable)
        self._variable = variable
        self._maps = [IdMap() for _ in range(tables)]
        # The values on the servers that the worker knows, with what it has sent since.
        self._bases = GrowableArray((self.store.width,), tf.float32)
        # The number of the table and the id of each row; -1 in places without a row.
        self._keys = GrowableArray((2,), tf.int64, fill=-1)
        with tf.init_scope(), tf.device(HOST):
            # Numbers of lookups of local rows since the last exchange, and of those that differ.
            self._counts = ResourceVariable(tf.zeros([tables, 2], tf.int64), trainable=False)

    def find(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the rows of keys; -1 for those that are not here."""
        by_table = TableKeys(keys, len(self._maps))
        parts = zip(self._maps, by_table.parts, strict=True)
        return by_table.join([ids.find(part[:, 1]) for ids, part in parts])

    def values(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the values of rows, float32 [n, width]."""
        return self._variable.table.gather(rows)

    def count(self, keys: tf.Tensor, rows: tf.Tensor) -> None:
        """Counts the occurrences of keys, each of which has a row here."""
        self.store.touch(rows, keys[:, 2])
        added = tf.stack([keys[:, 2], tf.ones_like(rows)], 1)
        with tf.device(HOST):
            numbers = tf.cast(keys[:, 0], tf.int32)
            self._counts.assign_add(
                tf.math.unsorted_segment_sum(added, numbers, len(self._maps)), read_value=False
            )

    def allocate(self, count: tf.Tensor) -> tf.Tensor:
        """Allocates rows; returns their numbers, int64 [count]."""
        rows = self.store.allocate(count)
        for array in (self._bases, self._keys):
            array.resize(self.store.view.length.read_value())
        return rows

    def insert(self, keys: tf.Tensor, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Gives distinct keys rows that were allocated for them, with the values fetched."""
        for ids, numbers, part in self._by_table(keys, rows):
            ids.insert(part[:, 1], numbers)
        self._variable.table.update(rows, values)
        self._bases.update(rows, values)
        self._keys.update(rows, keys[:, :2])
        # Of their occurrences, the server knows; but they are used from now on.
        self.store.touch(rows, tf.zeros_like(rows))

    def set_slots(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets slot variables of rows, in the order of `live_slots`; runs eagerly.

        Not in the graph of a step, because an optimizer may create them when that graph is built.
        """
        names = self._variable.live_slots()
        arrays = self.store.slots()
        for position, name in enumerate(names):
            arrays[name].resize(self.store.view.length.read_value())
            part = values[:, position * self.store.width : (position + 1) * self.store.width]
            arrays[name].update(tf.constant(rows), tf.constant(part))

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the keys of all rows, with no occurrences, and the rows; runs eagerly."""
        found = self._keys.gather(tf.range(self._keys.length())).numpy()
        rows = np.flatnonzero(found[:, 0] >= 0)
        keys = np.zeros([len(rows), 3], np.int64)
        keys[:, :2] = take(found, rows)
        return keys, rows

    def _metadata_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the metadata of rows since the last exchange, 0 of those that were not used."""
        return self.store.metadata.array.gather(tf.constant(rows)).numpy()

    def to_exchange(self, cache: int | None) -> ExchangedRows:
        """Returns all rows but those with a gradient that is still to be applied; runs eagerly.

        Args:
          cache: number of rows to keep; None keeps those that were used since the last exchange.
        """
        keys, rows = self.all()
        used, others_are_used = self._metadata_of(rows) != 0, False
        unapplied = self.store.view.unapplied_rows().numpy()
        if len(unapplied):
            ready = ~np.isin(rows, unapplied)
            others_are_used = bool(used[~ready].any())
            keys, rows, used = keys[ready], rows[ready], used[ready]
        metadata = self.store.metadata
        kept = used if cache is None else np.ones([len(rows)], np.bool_)
        if cache is not None and len(rows) > cache:
            # Rows that were not used rank last.
            rank = -metadata.by_frequency(tf.constant(rows)).numpy()
            kept[np.argsort(rank, kind="stable")[cache:]] = False
        numbers = tf.constant(rows[used])
        keys[used, 2] = metadata.frequency.gather(numbers).numpy()
        deltas = self.values(numbers) - self._bases.gather(numbers)
        slots = self._slots_of(numbers).numpy()
        return ExchangedRows(keys, rows, used, kept, deltas, slots, others_are_used)

    def renew(
        self, rows: np.ndarray, values: np.ndarray, slots: np.ndarray, sent: np.ndarray
    ) -> None:
        """Gives rows that are kept what the servers have of them, and what was not sent of them.

        From now on, they count as not used.

        Args:
          rows: the rows.
          values: their values on the servers, float32 [n, width].
          slots: their slot variables, in the order of `live_slots`.
          sent: what was added to them on the servers, float32 [n, width].
        """
        numbers = tf.constant(rows)
        unsent = self.values(numbers) - self._bases.gather(numbers) - sent
        self._variable.table.update(numbers, values + unsent)
        self._bases.update(numbers, values)
        self.set_slots(rows, slots)
        self.store.metadata.array.update(numbers, tf.zeros_like(numbers))

    def _slots_of(self, rows: tf.Tensor) -> tf.Tensor:
        arrays = self.store.slots()
        columns = []
        for name in self._variable.live_slots():
            arrays[name].resize(self.store.view.length.read_value())
            columns.append(arrays[name].gather(rows))
        return tf.concat(columns, 1) if columns else tf.zeros([tf.size(rows), 0])

    def forget(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Frees rows; runs eagerly."""
        numbers = tf.constant(rows)
        for ids, _, part in self._by_table(tf.constant(keys), numbers):
            ids.remove(part[:, 1])
        self._keys.reset(numbers)
        self.store.free(numbers)

    def take_counts(self) -> np.ndarray:
        """Returns and resets the numbers of lookups, int64 [tables, 2]."""
        counts = self._counts.numpy()
        self._counts.assign(tf.zeros_like(self._counts))
        return counts

    def tokens(self) -> list[tf.Tensor]:
        """Returns tensors that depend on all changes of the rows so far in the program.

        A Python function that changes the rows takes them as arguments, because TensorFlow does not
        know what it uses. So a step's changes are complete when it runs, also in a function of
        several steps.
        """
        none = tf.zeros([0], tf.int64)
        return [
            *self.store.tokens(),
            self._bases.gather(none),
            self._keys.gather(none),
            *(each.size() for each in self._maps),
            self._counts.read_value(),
        ]

    def _by_table(self, keys: tf.Tensor, rows: tf.Tensor) -> list[tuple[IdMap, Any, tf.Tensor]]:
        """Returns the map of each table, and the rows and keys of its part of the keys."""
        if len(self._maps) == 1:
            return [(self._maps[0], rows, keys)]
        numbers, count = tf.cast(keys[:, 0], tf.int32), len(self._maps)
        parts = tf.dynamic_partition(keys, numbers, count)
        return list(zip(self._maps, tf.dynamic_partition(rows, numbers, count), parts, strict=True))
