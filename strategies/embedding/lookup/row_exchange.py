"""Exchange of the rows that a worker trains itself with those on the parameter servers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.lookup.traffic import TrafficCounter
from strategies.embedding.shard.hashing import shard_of
from strategies.embedding.shard.local_rows import ExchangedRows, LocalRows, LocalRowVariable, take
from strategies.embedding.shard.server_shard import RemoteTableShard
from strategies.embedding.shard.shard_lookup import ShardLookup
from strategies.embedding.shard.table_shard import Group
from strategies.ps.connection import ServerConnection
from strategies.ps.extended import ParameterServerExtended
from strategies.reduction.row_wire import RowWire
from strategies.utils.devices import HOST
from tf_config.capacity import KEY_BYTES

# Size of the rows in one message of an exchange.
CHUNK_BYTES = 1 << 24


class RowExchange:
    """Sends the changes of a worker's rows to the servers, and gets those of other workers.

    See [Note: rows of the mode "geo"] in shard/local_rows.py. All methods run eagerly.

    Args:
      extended: `extended` of the strategy.
      shards: shard of each server.
      group: group of the tables.
      local: the rows of this worker.
      variable: variable of the rows, as seen by the optimizer.
      traffic: counts what is sent.

    Attributes:
      is_unsent: variable that tells whether the mode knows of changes to send; for graphs of steps.
    """

    def __init__(
        self,
        extended: ParameterServerExtended,
        shards: Sequence[RemoteTableShard],
        group: Group,
        local: LocalRows,
        variable: LocalRowVariable,
        traffic: TrafficCounter,
    ):
        self._servers = extended.servers
        self._mode = extended.update_mode
        self._shards = shards
        self._lookups = [shard.lookups[group] for shard in shards]
        self._sequences = [shard.new_sequence() for shard in shards]
        self._local = local
        self._variable = variable
        self._traffic = traffic
        self._wire = RowWire(group.width, group.exchange_dtype)
        self._width = group.width
        # The number of this worker's steps that the servers know of.
        self._counted = 0
        # Until when this worker knows the rows of each server that it keeps copies of.
        self._known = {shard.index: np.zeros([2], np.int64) for shard in shards}
        with tf.init_scope(), tf.device(HOST):
            self.is_unsent = ResourceVariable(False, trainable=False)

    def uncounted(self, step: int) -> np.int64:
        """Returns how many steps the servers do not know of, and takes them as known."""
        steps, self._counted = step - self._counted, step
        return np.int64(steps)

    def run(self) -> None:
        """Sends the changes of this worker's rows to the servers, and gets those of others.

        Forgets the rows that this worker does not keep.
        """
        with tf.init_scope(), tf.device(HOST):
            exchanged = self._local.to_exchange(self._mode.row_cache)
            counts = self._local.take_counts()
            steps = self.uncounted(int(self._local.store.step.numpy()))
            if exchanged.used.any() or steps or counts.any():
                self._send(exchanged, counts, steps)
            self.mark_unsent(exchanged.others_are_used)

    def mark_unsent(self, is_unsent: bool) -> None:
        """Records whether this worker has changes to send; runs eagerly."""
        self._mode.mark_unsent(self.run, is_unsent)
        with tf.init_scope(), tf.device(HOST):
            self.is_unsent.assign(is_unsent)

    def _send(self, exchanged: ExchangedRows, counts: np.ndarray, steps: np.int64) -> None:
        """Adds what was changed to the rows on the servers, and renews the rows that are kept."""
        keys, used, kept = exchanged.keys, exchanged.used, exchanged.kept
        tables = tf.constant(keys[used, :1])
        remote = self._traffic.remote_keys(tables, lambda: tables[:0])
        self._traffic.record_gradients(remote)
        owners = shard_of(tf.constant(keys[:, 1]), len(self._shards)).numpy()
        workers, slots = self._mode.present_workers, self._variable.live_slots()
        wire, width = self._wire, self._width
        deltas = wire.encode(exchanged.deltas / workers).numpy()
        # Where the used rows are among them.
        place = np.cumsum(used) - 1
        # Keys and values are sent, and those of rows that are kept come back.
        chunk = max(CHUNK_BYTES // (KEY_BYTES + 8 * width * (1 + len(slots))), 1)

        def exchange(
            keys: tf.Tensor, is_used: tf.Tensor, is_kept: tf.Tensor, known: tf.Tensor,
            counts: tf.Tensor, steps: tf.Tensor, deltas: tf.Tensor, values: tf.Tensor,
            lookup: ShardLookup,
        ) -> tuple[Callable[[], None], Callable[[], list[tf.Tensor]]]:  # fmt: skip
            rows = lookup.find(keys)

            def add() -> None:
                changed, times = (tf.boolean_mask(each, is_used) for each in (rows, keys[:, 2]))
                added = wire.decode(deltas, width)
                lookup.add(changed, times, counts, steps, added, values, slots, workers)

            def read() -> list[tf.Tensor]:
                copied = tf.where(is_kept, rows, -1)
                exists, is_new, values, *rest = lookup.changes(copied, is_used, known, slots)
                return [exists, is_new, wire.encode(values), *rest]

            return add, read

        def send_to(server: ServerConnection) -> list[list[np.ndarray]]:
            lookup, shard = self._lookups[server.number], self._shards[server.number]
            positions, results = np.flatnonzero((owners == shard.index) & (used | kept)), []
            known = self._known[shard.index]
            # Of the numbers of lookups, the sum over all shards is reported.
            rest = [counts if shard.index == 0 else np.zeros_like(counts), steps]
            for start in range(0, max(len(positions), 1), chunk):
                part = positions[start : start + chunk]
                sent = place[part[used[part]]]
                exists, is_new, *values, until = shard.call_once(
                    self._sequences[server.number], functools.partial(exchange, lookup=lookup),
                    *(take(each, part) for each in (keys, used, kept)), known, *rest,
                    *(take(each, sent) for each in (deltas, exchanged.slots)), state=lookup.slots,
                )  # fmt: skip
                if start == 0:
                    self._known[shard.index] = until
                existing = part[exists]
                results.append([existing, existing[is_new], *values])
                rest = [np.zeros_like(each) for each in rest]
            return results

        is_forgotten = np.ones([len(owners)], np.bool_)
        answers = itertools.chain(*self._servers.each(send_to))
        for existing, changed, values, slot_values in answers:
            is_forgotten[existing] = False
            of_used = used[changed]
            sent = wire.decode_array(take(deltas, place[changed[of_used]]), width)
            if not of_used.all():
                sent = _spread(sent, of_used)
            values = wire.decode_array(values, width)
            self._local.renew(take(exchanged.rows, changed), values, slot_values, sent)
        if is_forgotten.any():
            self._local.forget(keys[is_forgotten], exchanged.rows[is_forgotten])


def _spread(rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns the rows at the places of a mask, and zeros elsewhere."""
    spread = np.zeros([len(mask), rows.shape[1]], rows.dtype)
    spread[mask] = rows
    return spread
