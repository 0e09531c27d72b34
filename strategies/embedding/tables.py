"""All tables of a layer: what is looked up together, and what happens to rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from strategies._tensorflow import in_save_context
from strategies.collectives import Collectives
from strategies.embedding.checkpoint import checkpoint
from strategies.embedding.checkpoint import export_import as plain
from strategies.embedding.checkpoint import snapshot as state
from strategies.embedding.checkpoint.saved_model import Serving
from strategies.embedding.checkpoint.weight_tokens import Snapshots
from strategies.embedding.config import TableConfig
from strategies.embedding.inputs import Bags, int64_array
from strategies.embedding.lookup.fused_optimizer import FusedOptimizer
from strategies.embedding.lookup.lookup import Lookup
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import LookupRouter
from strategies.embedding.lookup.traffic import ELSEWHERE, PREFETCHED, traffic
from strategies.embedding.placement_report import (
    Place,
    TableUsage,
    report,
)
from strategies.embedding.shard.room import share_out
from strategies.embedding.shard.shard import Group, TableShard, TableSpecs
from strategies.embedding.shard.table import COUNTED, Table
from strategies.variables.sparse_variable import SparseVariable


class Tables:
    """The tables of a layer, those of one group with their rows together.

    Args:
      wanted: what they are made from.
      collectives: the workers.
      homes: where the rows are; all of them, of which this worker saves and restores some.
      places: what these are called, by group.
      variables: what an optimizer sees, one for each group.
      routes: to the rows of each group.
      trainers: of the groups that the model's optimizer does not train.
    """

    def __init__(
        self,
        wanted: TableSpecs,
        collectives: Collectives,
        homes: Sequence[TableShard],
        places: Mapping[Group, Place],
        variables: Mapping[Group, SparseVariable],
        routes: Mapping[Group, LookupRouter],
        trainers: Mapping[Group, FusedOptimizer],
    ):
        self.collectives = collectives
        # What the layer's weights are, each with what trains it if that is not the model.
        self.weights = [(variables[group], trainers.get(group)) for group in wanted.groups]
        self._homes = homes
        self._places = {
            config.name: places[group]
            for group, configs in wanted.groups.items()
            for config in configs
        }
        self._wanted = wanted
        self._lookups = {
            group: Lookup(variables[group], routes[group], trainers.get(group))
            for group in wanted.groups
        }
        self.serving = Serving(homes, collectives, wanted.unseen)
        for group, configs in wanted.groups.items():
            variables[group].snapshots = self._snapshots(group, configs)

    def _snapshots(self, group: Group, configs: Sequence[TableConfig]) -> Snapshots:
        home, count = self._homes[0], self._homes[0].count
        is_of_workers = len(self._homes) < count
        part = (home.number, count) if is_of_workers and not group.is_replicated else (0, 1)
        names = [config.name for config in configs]
        return Snapshots(self._homes, names, part, is_of_workers, self._rows_were_set)

    def _rows_were_set(self) -> None:
        self._forget_prefetched()
        share_out(self._homes[0], self.collectives)

    @property
    def _mine(self) -> list[TableShard]:
        return [home for home in self._homes if home.is_mine]

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """In the block nobody trains."""
        self._homes[0].meet()
        yield
        self._homes[0].meet()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """In the block nobody trains, and rows may change or go."""
        with self._together():
            yield
        self._forget_prefetched()

    def _forget_prefetched(self) -> None:
        for lookup in self._lookups.values():
            lookup.route.forget()

    @contextlib.contextmanager
    def _setting_rows(self) -> Iterator[None]:
        """In the block nobody trains, and behind it each worker knows its part of the room."""
        with self._changing():
            yield
            share_out(self._homes[0], self.collectives)

    def ask(self, group: Group, ahead: PrefetchQueue, keys: np.ndarray, begins: bool) -> None:
        """Asks for rows that a step will need."""
        self._lookups[group].route.ask(ahead, keys, begins)

    def outputs(self, bags: Mapping[str, Bags], training: bool | None, dtype: str) -> dict:
        """Returns each feature's output."""
        if in_save_context():
            return {
                name: bags[name].combined(
                    tf.cast(self.serving.rows(feature.table.name, bags[name].ids), dtype)
                )
                for name, feature in self._wanted.features.items()
            }
        outputs = {}
        for group, lookup in self._lookups.items():
            found = lookup(self._wanted.ids(group, bags), training)
            for config, rows in zip(self._wanted.groups[group], found, strict=True):
                names = self._wanted.features_of(config.name)
                for name, part in zip(names, _split(rows, [bags[n] for n in names]), strict=True):
                    outputs[name] = bags[name].combined(tf.cast(part, dtype))
        return {name: outputs[name] for name in self._wanted.features}

    def evict(self) -> dict[str, int]:
        """Takes away the rows that the tables' `eviction` names; returns how many, by table."""
        names = list(self._homes[0].tables)
        gone = np.zeros([len(names)], np.int64)
        with self._changing():
            for home in self._mine:
                for position, name in enumerate(names):
                    table = home.tables[name]
                    key = ("evict", name, *table.store.slots())
                    gone[position] += home.call(key, table.evict)
            total = self.collectives.all_reduce([tf.constant(gone)])[0].numpy().tolist()
        return dict(zip(names, total, strict=True))

    def statistics(self) -> dict[str, dict[str, float]]:
        """Returns what happened to each table on all workers."""
        with self._together():
            return {name: self._statistics(name, sent) for name, sent in self._sent()}

    def _sent(self) -> list[tuple[str, np.ndarray]]:
        """Returns the tables' names, and what was sent for them."""
        return [
            (config.name, self.collectives.all_reduce([tf.constant(sent)])[0].numpy())
            for group, lookup in self._lookups.items()
            for config, sent in zip(
                self._wanted.groups[group], lookup.route.sent.counts(), strict=True
            )
        ]

    def _statistics(self, name: str, sent: np.ndarray) -> dict[str, float]:
        counted = []
        for home in self._mine:
            table = home.tables[name]
            size, counts = home.call(
                ("counts", name),
                lambda table=table: (table.map.size(), table.counts.read_value()),
            )
            counted.append([size, *counts])
        mine = np.reshape(np.array(counted, np.int64), [-1, 1 + len(COUNTED)])
        everyone = self.collectives.all_gather(tf.constant(mine)).numpy()
        # One for each place that has others' rows: each copy counted all of it.
        everyone = everyone[:: self._places[name].copies]
        total = everyone.sum(axis=0)
        numbers = dict(zip(("rows", *COUNTED), total.tolist(), strict=True))
        numbers |= self._traffic(name, sent)
        numbers["prefetched"] = int(sent[PREFETCHED])
        numbers["unique_ratio"] = numbers["unique"] / max(numbers["lookups"], 1)
        mean = total[0] / len(everyone)
        numbers["imbalance"] = float(everyone[:, 0].max() / mean) if mean else 1.0
        return numbers

    def plan(self) -> str:
        """Returns where each table's rows are, what they take, and why, of all workers."""
        with self._together():
            return report([self._held(name, sent) for name, sent in self._sent()])

    def _held(self, name: str, sent: np.ndarray) -> TableUsage:
        mine = np.zeros([2], np.int64)
        for home in self._mine:
            table = home.tables[name]
            mine += home.call(
                ("held", name),
                lambda table=table: tf.stack([table.map.size(), table.refused_bytes()]),
            )
        rows, refused = self.collectives.all_reduce([tf.constant(mine)])[0].numpy().tolist()
        table, place = self.table(name), self._places[name]
        in_training = sent.copy()
        in_training[ELSEWHERE] = 0
        return TableUsage(
            name, place, table.config.output_dim, list(table.store.slots()), rows // place.copies,
            table.store.row_bytes(), refused, int(state.step_of(self._homes[0], name)),
            sum(self._traffic(name, in_training).values()),
        )  # fmt: skip

    def _traffic(self, name: str, sent: np.ndarray) -> dict[str, int]:
        config = self.table(name).config
        return traffic(sent, config.output_dim, brings_rows=self._places[name].copies == 1)

    def set_rows(self, ids: np.ndarray, rows: np.ndarray, name: str | None) -> None:
        """Sets the rows of ids; each place takes its own."""
        ids, rows = int64_array(ids), np.asarray(rows, np.float32)
        if len(np.unique(ids)) != ids.size or ids.ndim != 1:
            raise ValueError(
                "Rows are set for ids, each named once. Received: ids of shape "
                f"{ids.shape}, {len(np.unique(ids))} of them different."
            )
        arrays = {"ids": ids, "rows": rows}
        table = self.table(name)
        state.check(table, arrays)
        with self._setting_rows():
            if table.config.is_replicated:
                # Each worker may have given a part.
                everyone = state.everyones(arrays, self.collectives)
                _, once = np.unique(everyone["ids"], return_index=True)
                arrays = {key: array[once] for key, array in everyone.items()}
            for home in self._mine:
                state.put(home, table.config.name, arrays)

    def export(self, directory: str, kind: str, name: str | None) -> None:
        """Writes a table's ids and rows to plain files; see `plain`."""
        with self._together():
            pieces = state.pieces_of(self._homes, self.table(name).config.name, only=("rows",))
            plain.write(directory, kind, pieces, self.collectives)

    def take(self, directory: str, name: str | None) -> None:
        """Sets the rows of ids from plain files; each place takes its own."""
        table = self.table(name)
        parts = plain.read(directory)
        keys = np.concatenate([part.keys() for part in parts])
        if keys.dtype.kind not in "iu" or keys.ndim != 1 or len(np.unique(keys)) != keys.size:
            raise ValueError(
                "Rows are imported for ids, integers that are named once in all parts. Received: "
                f"{keys.dtype} of shape {keys.shape} in {directory!r}, {len(np.unique(keys))} of "
                "them different."
            )
        int64_array(keys)
        with self._setting_rows():
            for ids, rows in (piece for part in parts for piece in part.pieces()):
                arrays = {"ids": int64_array(ids), "rows": rows}
                for home in self._mine if len(ids) else ():
                    state.put(home, table.config.name, arrays)

    def packed(self) -> state.Arrays:
        """Returns all rows of all workers, which all call it."""
        with self._together():
            return state.packed(self._homes, self.collectives)

    def unpack(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets all rows to what `packed` returned."""
        with self._setting_rows():
            state.unpack(self._mine, arrays)

    def save(self, directory: str, delta: bool) -> str:
        """Saves the rows to a directory; see `checkpoint`."""
        with self._together():
            return checkpoint.save(self._homes, directory, self.collectives, delta)

    def load(self, directory: str) -> None:
        """Sets the rows from a directory; see `checkpoint`."""
        with self._setting_rows():
            checkpoint.load(self._homes, directory)

    def rows(self, name: str | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns this worker's ids of a table in rising order, and their rows."""
        self._homes[0].drain()
        return state.rows_of(self._homes, self.table(name).config.name)

    def table(self, name: str | None) -> Table:
        """Returns a table by its name, as it is in one of the places; None is the only one.

        Raises:
          ValueError: if there is no such table.
        """
        tables = self._homes[0].tables
        if name is None and len(tables) == 1:
            return next(iter(tables.values()))
        if name not in tables:
            raise ValueError(
                f"A table is one of {', '.join(map(repr, tables))}. Received: {name!r}."
            )
        return tables[name]


def _split(rows: tf.Tensor, bags: Sequence[Bags]) -> list[tf.Tensor]:
    """Returns each feature's rows of those that were looked up together."""
    if len(bags) == 1:
        return [rows]
    parts = tf.split(rows, tf.stack([tf.size(bag.ids) for bag in bags]), num=len(bags))
    return [tf.ensure_shape(part, [None, rows.shape[-1]]) for part in parts]
