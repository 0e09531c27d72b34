"""The tables of a layer: their lookups, and operations on their rows across all workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.compat.tensorflow import in_save_context
from strategies.diagnostics.metrics import add_source
from strategies.embedding.checkpoint import export_import, snapshot
from strategies.embedding.checkpoint import row_checkpoint as checkpoint
from strategies.embedding.checkpoint.background_save import BackgroundSave
from strategies.embedding.checkpoint.row_changes import Mark, RowChanges, mark
from strategies.embedding.checkpoint.saved_model import Serving
from strategies.embedding.checkpoint.snapshot import Arrays
from strategies.embedding.checkpoint.weight_tokens import Snapshots
from strategies.embedding.config import TableConfig
from strategies.embedding.inputs import Bags, int64_array
from strategies.embedding.lookup.batch_keys import BatchKeys
from strategies.embedding.lookup.fused_optimizer import FusedOptimizer
from strategies.embedding.lookup.group_lookup import Lookup
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import LookupRouter
from strategies.embedding.lookup.traffic import ELSEWHERE, PREFETCHED, traffic_bytes
from strategies.embedding.lookup.whole_table import whole_table
from strategies.embedding.placement_report import Placement, TableUsage, limit_of, report
from strategies.embedding.shard.rebalancing import rebalance
from strategies.embedding.shard.table import STATISTICS, Table
from strategies.embedding.shard.table_shard import Group, TableShard, TableSpecs
from strategies.variables.row_variable import RowVariable
from tf_config.launcher.progress_file import Sample


class Tables:
    """The tables of a layer; the tables of a group are looked up together.

    All workers must call the methods that read or change the rows of all workers, because each has
    a part. None may train during such a call (`_pause_training`): workers in step do not, and those
    with parameter servers wait for one another before and after it. If rows are changed other than
    by training, prefetched rows and the bases of deltas also become invalid.

    Args:
      specs: specification of the tables.
      collectives: collectives among the workers.
      shards: shards of the tables that this worker can access; it saves and restores those it owns.
      placements: placement of each group.
      variables: variable of each group, as seen by the optimizer.
      routers: router of each group from keys to their rows.
      fused_optimizers: optimizers of the groups that the model's optimizer does not train.
    """

    def __init__(
        self,
        specs: TableSpecs,
        collectives: Collectives,
        shards: Sequence[TableShard],
        placements: Mapping[Group, Placement],
        variables: Mapping[Group, RowVariable],
        routers: Mapping[Group, LookupRouter],
        fused_optimizers: Mapping[Group, FusedOptimizer],
    ):
        self.collectives = collectives
        # The layer's weights, each with its fused optimizer or None.
        self.weights = [(variables[group], fused_optimizers.get(group)) for group in specs.groups]
        self._shards = shards
        self._placements = {
            config.name: placements[group]
            for group, configs in specs.groups.items()
            for config in configs
        }
        self._specs = specs
        self._lookups = {
            group: Lookup(
                variables[group],
                routers[group],
                fused_optimizers.get(group),
                decides_on_rows=any(
                    config.admission is not None or config.overflow == "evict" for config in configs
                ),
            )
            for group, configs in specs.groups.items()
        }
        self._delta_bases = checkpoint.DeltaBases()
        # The slot variables in the bases of deltas, by table and by name in the files.
        self._slots_in_bases: dict[tuple[str, str], str] = {}
        self.serving = Serving(shards, collectives, specs.unseen)
        for group, configs in specs.groups.items():
            variables[group].snapshots = self._snapshots(group, configs)
            variables[group].read_whole = self._reader(variables[group], group, configs)
            # A delta's base would restore slot variables of the former optimizer.
            variables[group].on_slots_removed = self._delta_bases.clear
        add_source(self, Tables.samples)

    def samples(self) -> list[Sample]:
        """Returns numbers of the rows in this process's memory, for the page of metrics."""
        return [sample for shard in self._shards for sample in shard.samples()]

    def _snapshots(self, group: Group, configs: Sequence[TableConfig]) -> Snapshots:
        shard = self._shards[0]
        is_of_workers = len(self._shards) < shard.num_shards
        is_part = is_of_workers and not group.is_replicated
        part = (shard.index, shard.num_shards) if is_part else (0, 1)
        names = [config.name for config in configs]
        return Snapshots(self._shards, names, part, is_of_workers, self._finish_restore)

    def _reader(
        self, variable: RowVariable, group: Group, configs: Sequence[TableConfig]
    ) -> Callable[[], tf.Tensor]:
        """Returns a function that reads a group's variable as the matrix of a stock Embedding."""
        config = configs[0]
        refusal = None
        if self.collectives.size > 1 or self._placements[config.name].task_type == "ps":
            refusal = "whose rows are on several workers or on servers"
        elif len(configs) > 1:
            refusal = f"which has the rows of {len(configs)} tables"
        elif config.overflow == "share":
            refusal = "in which ids share a row"
        elif config.overflow == "evict":
            refusal = "which evicts rows when it is full"

        def read() -> tf.Tensor:
            if refusal is not None:
                variable.refuse_read(refusal)
            return whole_table(self._lookups[group], self.table(config.name))

        return read

    def _finish_restore(self) -> None:
        self._delta_bases.clear()
        self._forget_copies()
        # A worker sets the rows of all servers, without the others.
        is_part = len(self._shards) < self._shards[0].num_shards
        rebalance(self._shards, self.collectives, together=is_part)

    def forget_lost_rows(self) -> None:
        """Discards what depends on rows that a server has lost, because it was restarted."""
        self._delta_bases.clear()
        self._clear_prefetched()

    @property
    def _local_shards(self) -> list[TableShard]:
        return [shard for shard in self._shards if shard.is_local_owner]

    @contextlib.contextmanager
    def _pause_training(self) -> Iterator[None]:
        """Pauses training on all workers while the block runs."""
        self._shards[0].barrier()
        yield
        self._shards[0].barrier()

    @contextlib.contextmanager
    def _change_rows(self) -> Iterator[None]:
        """Pauses training while the block runs, and discards copies of rows after it."""
        with self._pause_training():
            yield
        self._forget_copies()

    @contextlib.contextmanager
    def _replace_rows(self) -> Iterator[None]:
        """Pauses training while the block sets rows, and rebalances capacities at its end."""
        with self._change_rows():
            self._delta_bases.clear()
            yield
            rebalance(self._shards, self.collectives, together=True)

    def _forget_copies(self) -> None:
        """Discards this worker's copies of rows that are elsewhere, including prefetched ones."""
        self._clear_prefetched()
        for lookup in self._lookups.values():
            lookup.router.forget_copies()

    def _clear_prefetched(self) -> None:
        for lookup in self._lookups.values():
            lookup.router.clear_prefetched()

    def prefetch(
        self, group: Group, queue: PrefetchQueue, keys: np.ndarray, starts_step: bool
    ) -> None:
        """Submits the lookup of a future step to a queue."""
        self._lookups[group].router.prefetch(queue, keys, starts_step)

    def exchange_ahead(self, keys: Mapping[Group, BatchKeys]) -> None:
        """Lets each step exchange the rows of the next batch; all workers must call it together.

        Args:
          keys: the keys of the next batches, by group.
        """
        for group, lookup in self._lookups.items():
            lookup.router.exchange_ahead(keys[group])

    def outputs(
        self, bags: Mapping[str, Bags], training: bool | None, dtype: str
    ) -> tuple[dict[str, Any], list[tf.Tensor]]:
        """Returns each feature's output, and this replica's shares of the penalties on rows."""
        if in_save_context():
            served = {
                name: _combine(
                    bags[name], self.serving.rows(feature.table.name, bags[name].ids), dtype
                )
                for name, feature in self._specs.features.items()
            }
            return served, []
        outputs, penalties = {}, []
        for group, lookup in self._lookups.items():
            values, penalty = lookup(self._specs.ids(group, bags), training)
            if penalty is not None:
                penalties.append(penalty)
            for config, rows in zip(self._specs.groups[group], values, strict=True):
                names = self._specs.features_of(config.name)
                for name, part in zip(names, _split(rows, [bags[n] for n in names]), strict=True):
                    outputs[name] = _combine(bags[name], part, dtype)
        return {name: outputs[name] for name in self._specs.features}, penalties

    def evict(self) -> dict[str, int]:
        """Evicts rows by the tables' `eviction` rules; returns their number by table."""
        with self._change_rows():
            times = self._shards[0].agree_on_time(self.collectives)
            evicted = np.zeros([len(self._placements)], np.int64)
            for shard in self._local_shards:
                for position, (name, table) in enumerate(shard.tables.items()):
                    evicted[position] += shard.call_on_table(
                        name, Table.evict, *times, state=table.store.slots()
                    )
            total = self.collectives.all_reduce([tf.constant(evicted)])[0].numpy().tolist()
            return dict(zip(self._shards[0].tables, total, strict=True))

    def statistics(self) -> dict[str, dict[str, float]]:
        """Returns statistics of each table over all workers."""
        with self._pause_training():
            return {name: self._statistics(name, traffic) for name, traffic in self._traffic()}

    def _traffic(self) -> list[tuple[str, np.ndarray]]:
        """Returns each table's name and its traffic over all workers."""
        return [
            (config.name, self.collectives.all_reduce([tf.constant(counts)])[0].numpy())
            for group, lookup in self._lookups.items()
            for config, counts in zip(
                self._specs.groups[group], lookup.router.traffic.counts(), strict=True
            )
        ]

    def _statistics(self, name: str, traffic: np.ndarray) -> dict[str, float]:
        local = []
        for shard in self._local_shards:
            size, counts = shard.call_on_table(
                name, lambda table: (table.size(), table.counts.read_value()), idempotent=True
            )
            local.append([size, *counts])
        # A worker that owns no shard, because there are fewer servers, contributes none.
        counted = np.reshape(np.array(local, np.int64), [-1, 1 + len(STATISTICS)])
        by_shard = self.collectives.all_gather(tf.constant(counted)).numpy()
        # Each copy of a replicated table counts everything, so one copy is enough.
        by_shard = by_shard[:: self._placements[name].copies]
        total = by_shard.sum(axis=0)
        numbers = dict(zip(("rows", *STATISTICS), total.tolist(), strict=True))
        numbers |= self._traffic_bytes(name, traffic)
        numbers["prefetched"] = int(traffic[PREFETCHED])
        numbers["unique_ratio"] = numbers["unique"] / max(numbers["lookups"], 1)
        mean = total[0] / len(by_shard)
        numbers["imbalance"] = float(by_shard[:, 0].max() / mean) if mean else 1.0
        return numbers

    def plan(self) -> str:
        """Returns a report of each table's placement, the reason for it, and its memory."""
        with self._pause_training():
            return report([self._usage(name, traffic) for name, traffic in self._traffic()])

    def rows_by_owner(self) -> dict[str, dict[tuple[str, int], int]]:
        """Returns the number of rows of each table on each worker or server."""
        with self._pause_training():
            return {name: self._rows_by_owner(name) for name in self._placements}

    def _rows_by_owner(self, name: str) -> dict[tuple[str, int], int]:
        local = [
            [shard.index, shard.call_on_table(name, Table.size, idempotent=True)]
            for shard in self._local_shards
        ]
        counted = np.reshape(np.array(local, np.int64), [-1, 2])
        gathered = self.collectives.all_gather(tf.constant(counted)).numpy().tolist()
        owner = self._placements[name].task_type
        return {
            (owner, index if owner == "ps" else rank): size
            for rank, (index, size) in enumerate(gathered)
        }

    def _usage(self, name: str, traffic: np.ndarray) -> TableUsage:
        local = np.zeros([2], np.int64)
        for shard in self._local_shards:
            local += shard.call_on_table(
                name,
                lambda table: tf.stack([table.size(), table.counter_bytes()]),
                idempotent=True,
            )
        rows, counter_bytes = self.collectives.all_reduce([tf.constant(local)])[0].numpy().tolist()
        table, placement = self.table(name), self._placements[name]
        in_training = traffic.copy()
        in_training[ELSEWHERE] = 0
        return TableUsage(
            name, placement, table.config.output_dim, list(table.store.slots()),
            rows // placement.copies, table.store.row_bytes(), counter_bytes,
            int(snapshot.step_of(self._shards[0], name)),
            sum(self._traffic_bytes(name, in_training).values()), limit_of(table.config),
        )  # fmt: skip

    def _traffic_bytes(self, name: str, traffic: np.ndarray) -> dict[str, int]:
        config = self.table(name).config
        row = config.output_dim * tf.as_dtype(config.exchange_dtype).size
        return traffic_bytes(traffic, row, brings_rows=self._placements[name].copies == 1)

    def set_rows(self, ids: np.ndarray, rows: np.ndarray, name: str | None) -> None:
        """Sets the rows of ids in the shards that own them."""
        ids, rows = int64_array(ids), np.asarray(rows, np.float32)
        if len(np.unique(ids)) != ids.size or ids.ndim != 1:
            raise ValueError(
                f"ids must be a vector of distinct ids. Received: ids of shape {ids.shape}, "
                f"{len(np.unique(ids))} of them distinct."
            )
        arrays = {"ids": ids, "rows": rows}
        table = self.table(name)
        snapshot.check_shapes(table, arrays)
        with self._replace_rows():
            if table.config.is_replicated:
                # Each worker may have passed only a part.
                gathered = snapshot.gather_all(arrays, self.collectives)
                _, once = np.unique(gathered["ids"], return_index=True)
                arrays = {key: array[once] for key, array in gathered.items()}
            for shard in self._local_shards:
                snapshot.restore_rows(shard, table.config.name, arrays)

    def export_rows(self, directory: str, format: str, name: str | None) -> None:
        """Exports a table's ids and rows to plain files; see `export_import`."""
        with self._pause_training():
            chunks = snapshot.row_chunks(self._shards, self.table(name).config.name)
            arrays = (chunk.arrays(only=("rows",)) for chunk in chunks)
            export_import.write(directory, format, arrays, self.collectives)

    def import_rows(self, directory: str, name: str | None) -> None:
        """Imports ids and rows from plain files; see `export_import`."""
        table = self.table(name)
        parts = export_import.read(directory)
        keys = np.concatenate([part.keys() for part in parts])
        if keys.dtype.kind not in "iu" or keys.ndim != 1 or len(np.unique(keys)) != keys.size:
            raise ValueError(
                "The keys of all parts must be distinct integers. Received: "
                f"{keys.dtype} of shape {keys.shape} in {directory!r}, {len(np.unique(keys))} of "
                "them distinct."
            )
        int64_array(keys)
        for part in parts:  # checks all parts before any row is set
            part.check(table.config.output_dim)
        with self._replace_rows():
            for ids, rows in (chunk for part in parts for chunk in part.chunks()):
                arrays = {"ids": int64_array(ids), "rows": rows}
                for shard in self._local_shards if len(ids) else ():
                    snapshot.restore_rows(shard, table.config.name, arrays)

    def snapshot(self) -> Arrays:
        """Returns the rows of all workers; all workers must call it."""
        with self._pause_training():
            return snapshot.take(self._shards, self.collectives)

    def restore(self, arrays: Mapping[str, np.ndarray], expects_slots: bool) -> None:
        """Restores all rows from a snapshot.

        Args:
          arrays: the snapshot.
          expects_slots: whether slot variables that do not exist yet are restored when the
            optimizer creates them; otherwise they are omitted.
        """
        with self._replace_rows():
            if not expects_slots:
                arrays = snapshot.without_missing_slots(self._shards, arrays)
            snapshot.restore(self._shards, arrays)

    def save(self, directory: str, delta: bool) -> str:
        """Saves the rows to a directory; see `checkpoint`."""
        # Prefetched rows are marked as touched now, but are trained on only later.
        with self._change_rows():
            snapshot.find_former_slots(self._shards)
            self._check_slots_in_bases()
            return checkpoint.save(
                self._shards, directory, self.collectives, delta, self._delta_bases
            )

    def begin_save(self, directory: str) -> BackgroundSave:
        """Begins to save the rows to a directory while training goes on."""
        with self._change_rows():
            snapshot.find_former_slots(self._shards)
            self._check_slots_in_bases()
            return BackgroundSave(self._shards, directory, self.collectives, self._delta_bases)

    def cut(self, save: BackgroundSave, memory: int) -> None:
        """Lets a save that was begun take the present rows; see `BackgroundSave.cut`."""
        with self._change_rows():
            snapshot.find_former_slots(self._shards)
            self._check_slots_in_bases()
            save.cut(memory)

    def mark(self) -> Mark:
        """Returns a mark of this moment, from which `changes` can tell what has changed."""
        with self._change_rows():
            return mark(self._shards, self._delta_bases.changes)

    def changes(self, since: Mark | None) -> RowChanges:
        """Returns what has changed since a mark; None is all rows.

        All workers must call it, and none may train until it is written and the next mark is set.
        """
        # Prefetched rows are marked as touched now, but are trained on only later.
        with self._change_rows():
            return RowChanges(self._shards, since, self._delta_bases.changes, self.collectives)

    def load(self, directory: str) -> None:
        """Restores the rows from a directory; see `checkpoint`."""
        with self._replace_rows():
            checkpoint.load(self._shards, directory, self.collectives)
            self._check_slots_in_bases()
            self._delta_bases.add(Path(directory), self._shards)

    def _check_slots_in_bases(self) -> None:
        """Discards the bases of deltas if one has a slot variable of a former optimizer."""
        before = self._slots_in_bases
        self._slots_in_bases = {
            (name, slot): key
            for name, table in self._shards[0].tables.items()
            for slot, key in table.store.saved_slots().items()
        }
        if any(self._slots_in_bases.get(each, key) != key for each, key in before.items()):
            self._delta_bases.clear()

    def rows(self, name: str | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns this worker's ids of a table in ascending order, and their rows."""
        self._shards[0].drain()
        return snapshot.ids_and_rows(self._shards, self.table(name).config.name)

    def table(self, name: str | None) -> Table:
        """Returns the first shard of a table.

        Args:
          name: name of the table; None is the only table.

        Raises:
          ValueError: if there is no such table.
        """
        tables = self._shards[0].tables
        if name is None and len(tables) == 1:
            return next(iter(tables.values()))
        if name not in tables:
            raise ValueError(
                f"table must be one of {', '.join(map(repr, tables))}. Received: {name!r}."
            )
        return tables[name]


def _combine(bags: Bags, rows: tf.Tensor, dtype: str) -> Any:
    """Returns a feature's output; rows are combined in float32 before the cast to `dtype`."""
    return tf.cast(bags.combine(rows), dtype)


def _split(rows: tf.Tensor, bags: Sequence[Bags]) -> list[tf.Tensor]:
    """Splits rows that were looked up together into those of each feature."""
    if len(bags) == 1:
        return [rows]
    parts = tf.split(rows, tf.stack([tf.size(bag.ids) for bag in bags]), num=len(bags))
    return [tf.ensure_shape(part, [None, rows.shape[-1]]) for part in parts]
