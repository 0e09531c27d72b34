"""Lookup of rows that each worker trains itself, between exchanges with the parameter servers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from strategies.embedding.lookup.batch_keys import BatchKeys
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import LookupResult, check_limits, join, split
from strategies.embedding.lookup.row_exchange import RowExchange
from strategies.embedding.lookup.server import ServerRouter
from strategies.embedding.shard.hashing import shard_of
from strategies.embedding.shard.local_rows import LocalRows, LocalRowVariable
from strategies.embedding.shard.server_shard import RemoteTableShard
from strategies.embedding.shard.table_keys import TableKeys
from strategies.embedding.shard.table_shard import Group
from strategies.ps.connection import ServerConnection
from strategies.ps.extended import ParameterServerExtended
from strategies.reduction.row_wire import RowWire
from strategies.reduction.sparse import sum_by_index
from strategies.utils.devices import HOST


class GeoRouter:
    """Looks up keys among the rows that this worker has, and fetches the others from the servers.

    See [Note: rows of the mode "geo"] in shard/local_rows.py. What changes slot variables is called
    from Python, with TensorFlow's eager operations: when the graph of a step is built, an optimizer
    may not have created them yet. Each of these operations runs in the calling thread, so that it
    needs none of TensorFlow's threads, of which there may be only one.

    Args:
      extended: `extended` of the strategy.
      shards: shard of each server.
      group: group of the tables.
      variable: variable of the rows, as seen by the optimizer.
    """

    def __init__(
        self,
        extended: ParameterServerExtended,
        shards: Sequence[RemoteTableShard],
        group: Group,
        variable: LocalRowVariable,
    ):
        self._extended = extended
        self._shards = shards
        self._lookups = [shard.lookups[group] for shard in shards]
        self._variable = variable
        self._steps = extended.update_mode.row_steps or 1
        self._wire = RowWire(group.width, group.exchange_dtype)
        self._servers = ServerRouter(extended, shards, group)
        self.traffic = self._servers.traffic
        self._local = LocalRows(self._lookups[0].count, variable)
        self._exchange = RowExchange(extended, shards, group, self._local, variable, self.traffic)

    def look_up(
        self, keys: Sequence[tf.Tensor], training: bool, starts_step: bool
    ) -> list[LookupResult]:
        """Looks up the rows of keys; in training, fetches those that are not here."""
        if not training:
            return [self._read(each) for each in keys]
        with tf.control_dependencies(self._begin_step() if starts_step else []):
            distinct, positions = self._distinct(join(keys))
            rows, values = self._find_or_fetch(distinct)
            if positions is not None:
                rows, values = tf.gather(rows, positions), tf.gather(values, positions)
            penalties = self._penalties(keys, rows)
            references = split(self._variable.view.references(rows), keys)
            parts = zip(split(values, keys), references, penalties, strict=True)
            return [
                LookupResult(values, references, True, lambda gradient: gradient, penalties)
                for values, references, penalties in parts
            ]

    def _begin_step(self) -> list[tf.Tensor]:
        """Counts a step, after an exchange if that is due."""
        step = self._local.store.step.read_value()
        is_due = (step > 0) & tf.equal(step % self._steps, 0)
        done = [tf.cond(is_due, self._exchange_in_step, lambda: tf.constant(True))]
        with tf.control_dependencies(done):
            self._local.store.step.assign_add(1, read_value=False)
        return done

    def _exchange_in_step(self) -> tf.Tensor:
        def exchange(*_: np.ndarray) -> list[np.ndarray]:
            self._exchange.run()
            return [np.ones([], np.bool_)]

        tokens = self._local.tokens()
        (done,) = self._extended.call_in_order("exchange rows", exchange, tokens, [tf.bool])
        return tf.ensure_shape(done, [])

    def _distinct(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the keys with each id of a table once, and the position of each among them.

        The keys of one replica are distinct already, and then the positions are None.
        """
        if len(self._extended.worker_devices) == 1:
            return keys, None
        by_table = TableKeys(keys, self._lookups[0].count)
        distinct, positions, before = [], [], tf.constant(0)
        for number, part in enumerate(by_table.parts):
            ids, indices, (counts,) = sum_by_index(part[:, 1], part[:, 2])
            numbers = tf.fill(tf.shape(ids), tf.constant(number, tf.int64))
            distinct.append(tf.stack([numbers, ids, counts], 1))
            positions.append(indices + before)
            before += tf.size(ids)
        return tf.concat(distinct, 0), by_table.join(positions)

    def _find_or_fetch(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of distinct keys, -1 for ids that get none, and their values."""
        local = self._local
        rows = local.find(keys)
        here, missing = tf.where(rows >= 0)[:, 0], tf.where(rows < 0)[:, 0]
        local.count(tf.gather(keys, here), tf.gather(rows, here))
        if not self._refuses:
            is_needed = (tf.size(missing) > 0) | ~self._exchange.is_unsent.read_value()
            rows = tf.cond(
                is_needed, lambda: self._fetch_missing(keys, rows, missing)[0], lambda: rows
            )
            return rows, local.values(rows)
        rows, refused, values = self._fetch_missing(keys, rows, missing)
        present = tf.where(rows >= 0)[:, 0]
        return rows, self._stitch(
            (present, local.values(tf.gather(rows, present))), (refused, values)
        )

    def _fetch_missing(
        self, keys: tf.Tensor, rows: tf.Tensor, missing: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Fetches the rows of keys that are not here.

        Args:
          keys: distinct keys.
          rows: their rows, -1 for those that are not here.
          missing: the positions of the latter.

        Returns:
          The rows, -1 for ids that get none; the positions of these ids, and their values.
        """
        local = self._local
        wanted = tf.gather(keys, missing)
        remote = self.traffic.remote_keys(wanted, lambda: wanted[:0])
        self.traffic.record_lookup(remote, training=True)
        new = local.allocate(tf.size(wanted[:, 0], tf.int64))
        has_row, values = self._fetch(wanted, new)
        admitted, refused = tf.where(has_row)[:, 0], tf.where(~has_row)[:, 0]
        numbers = tf.gather(new, admitted)
        local.insert(tf.gather(wanted, admitted), numbers, tf.gather(values, admitted))
        if self._refuses:
            local.store.free(tf.gather(new, refused))
        places = tf.gather(missing, admitted)[:, tf.newaxis]
        rows = tf.tensor_scatter_nd_update(rows, places, numbers)
        return rows, tf.gather(missing, refused), tf.gather(values, refused)

    @property
    def _refuses(self) -> bool:
        """Whether a lookup in training may leave an id without a row."""
        return any(not table.always_has_rows for table in self._lookups[0].tables)

    def _stitch(self, *parts: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Returns values in the order of their positions, float32 [n, width]."""
        positions, values = zip(*parts, strict=True)
        places = [tf.cast(each, tf.int32) for each in positions]
        return tf.reshape(tf.dynamic_stitch(places, values), [-1, self._local.store.width])

    def _penalties(self, keys: Sequence[tf.Tensor], rows: tf.Tensor) -> list[tf.Tensor | None]:
        """Returns the `LookupResult.penalties` of each replica."""
        lookup = self._lookups[0]
        if not lookup.has_penalty:
            return [None for _ in keys]
        return list(split(lookup.penalties(join(keys), rows), keys))

    def _read(self, keys: tf.Tensor) -> LookupResult:
        """Returns the values of keys without giving any a row."""
        rows = self._local.find(keys)
        here, missing = tf.where(rows >= 0)[:, 0], tf.where(rows < 0)[:, 0]
        (others,) = self._servers.look_up([tf.gather(keys, missing)], False, False)
        own = self._local.values(tf.gather(rows, here))
        return LookupResult(
            self._stitch((here, own), (missing, others.values)), rows, True, lambda each: each
        )

    def _fetch(self, keys: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Fetches keys from the servers; returns which have a row, and their values.

        Args:
          keys: distinct keys.
          rows: rows here that they get.
        """
        lookup = self._lookups[0]
        owners = shard_of(keys[:, 1], len(self._shards))
        step = self._local.store.step.read_value()
        has_row, values, excess = self._extended.call_in_order(
            "fetch rows",
            self._fetch_arrays,
            [keys, owners, rows, step, *self._local.tokens()],
            [tf.bool, tf.float32, tf.int64],
        )
        if lookup.limited:
            check_limits(lookup.limited, tf.ensure_shape(excess, [len(lookup.limited)]))
        return tf.ensure_shape(has_row, [None]), tf.ensure_shape(values, [None, lookup.width])

    def _fetch_arrays(
        self,
        keys: np.ndarray,
        owners: np.ndarray,
        rows: np.ndarray,
        step: np.ndarray,
        *_: np.ndarray,
    ) -> list[np.ndarray]:
        lookup, slots = self._lookups[0], self._variable.live_slots()
        has_row = np.zeros([len(keys)], np.bool_)
        values = np.zeros([len(keys), lookup.width], np.float32)
        excess = np.zeros([len(lookup.limited)], np.int64)
        self._exchange.mark_unsent(True)
        if not len(keys):
            return [has_row, values, excess]
        steps = self._exchange.uncounted(int(step))
        wire = self._wire

        def fetch_from(server: ServerConnection) -> list[np.ndarray]:
            lookup = self._lookups[server.number]

            def fetch(keys: tf.Tensor, steps: tf.Tensor) -> list[tf.Tensor]:
                has_row, values, each = lookup.fetch(keys, steps, slots)
                return [has_row, wire.encode(values), each, lookup.excess()]

            # A repeated call finds the rows that the first one created; it counts ids twice.
            shard = self._shards[server.number]
            own = keys[owners == shard.index]
            return shard.call(fetch, own, steps, state=lookup.slots, idempotent=True)

        slot_values = np.zeros([len(keys), lookup.width * len(slots)], np.float32)
        for index, result in enumerate(self._extended.servers.each(fetch_from)):
            own = np.flatnonzero(owners == index)
            has_row[own] = result[0]
            values[own] = wire.decode_array(result[1], lookup.width)
            slot_values[own[result[0]]] = result[2]
            excess += result[3]
        if slots:
            with tf.init_scope(), tf.device(HOST):
                self._local.set_slots(rows[has_row], slot_values[has_row])
        return [has_row, values, excess]

    def reduce(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the gradient unchanged: each worker trains its own rows."""
        return gradient

    def prefetch(self, queue: PrefetchQueue, keys: np.ndarray, starts_step: bool) -> None:
        """Does nothing: a step fetches only the rows that the steps before it have not used."""

    def exchange_ahead(self, keys: BatchKeys) -> None:
        """Does nothing: workers are not in step."""

    def clear_prefetched(self) -> None:
        """Does nothing: there are no prefetched lookups."""

    def forget_copies(self) -> None:
        """Forgets all rows, which others may have set."""
        with tf.init_scope(), tf.device(HOST):
            self._local.forget(*self._local.all())
