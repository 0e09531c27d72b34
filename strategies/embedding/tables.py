"""All tables of a layer: what is looked up together, and what happens to rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tensorflow import in_save_context
from strategies.collectives import Collectives
from strategies.embedding import checkpoint, plain, state
from strategies.embedding.combine import Bags
from strategies.embedding.exchange import Exchange
from strategies.embedding.home import Group, Home, Wanted
from strategies.embedding.lookup import Lookup
from strategies.embedding.plan import Held, Place, place_in_workers, report
from strategies.embedding.room import share_out
from strategies.embedding.route import BetweenWorkers, Route
from strategies.embedding.sent import traffic
from strategies.embedding.serving import Serving
from strategies.embedding.table import COUNTED, Table
from strategies.embedding.trainer import Trainer
from strategies.row_variable import RowVariable, View, new_name


class Tables:
    """The tables of a layer, those of one group with their rows together.

    Args:
      wanted: what they are made from.
      collectives: the workers.
      homes: where the rows are; all of them, of which this worker saves and restores some.
      place: what these are called.
      variables: what an optimizer sees, one for each group.
      routes: to the rows of each group.
      trainers: of the groups that the model's optimizer does not train.
    """

    def __init__(
        self,
        wanted: Wanted,
        collectives: Collectives,
        homes: Sequence[Home],
        place: Place,
        variables: Mapping[Group, RowVariable],
        routes: Mapping[Group, Route],
        trainers: Mapping[Group, Trainer],
    ):
        self.collectives = collectives
        # What the layer's weights are, each with what trains it if that is not the model.
        self.weights = [(variables[group], trainers.get(group)) for group in wanted.groups]
        self._homes = homes
        self._place = place
        self._features = wanted.features
        self._lookups = [
            (
                [each.name for each in configs],
                Lookup(variables[group], routes[group], trainers.get(group)),
            )
            for group, configs in wanted.groups.items()
        ]
        self.serving = Serving(homes, collectives, wanted.unseen)

    @property
    def _mine(self) -> list[Home]:
        return [home for home in self._homes if home.is_mine]

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """In the block nobody trains."""
        self._homes[0].meet()
        yield
        self._homes[0].meet()

    @contextlib.contextmanager
    def _setting_rows(self) -> Iterator[None]:
        """In the block nobody trains, and behind it each worker knows its part of the room."""
        with self._together():
            yield
            share_out(self._homes[0], self.collectives)

    def outputs(self, bags: Mapping[str, Bags], training: bool, dtype: str) -> dict:
        """Returns each feature's output."""
        if in_save_context():
            return {
                name: bags[name].combined(
                    tf.cast(self.serving.rows(feature.table.name, bags[name].ids), dtype)
                )
                for name, feature in self._features.items()
            }
        outputs = {}
        for tables, lookup in self._lookups:
            members = [self._members(table) for table in tables]
            ids = [tf.concat([bags[name].ids for name in names], 0) for names in members]
            for names, rows in zip(members, lookup(ids, training), strict=True):
                for name, part in zip(names, _split(rows, [bags[n] for n in names]), strict=True):
                    outputs[name] = bags[name].combined(tf.cast(part, dtype))
        return {name: outputs[name] for name in self._features}

    def _members(self, table: str) -> list[str]:
        """Returns the features that look up in a table."""
        return [feature for feature, config in self._features.items() if config.table.name == table]

    def evict(self) -> dict[str, int]:
        """Takes away the rows that the tables' `eviction` names; returns how many, by table."""
        names = list(self._homes[0].tables)
        gone = np.zeros([len(names)], np.int64)
        with self._together():
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
            (name, self.collectives.all_reduce([tf.constant(sent)])[0].numpy())
            for names, lookup in self._lookups
            for name, sent in zip(names, lookup.sent.counts(), strict=True)
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
        total = everyone.sum(axis=0)
        numbers = dict(zip(("rows", *COUNTED), total.tolist(), strict=True))
        numbers |= traffic(sent, self.table(name).config.output_dim)
        numbers["unique_ratio"] = numbers["unique"] / max(numbers["lookups"], 1)
        mean = total[0] / len(everyone)
        numbers["imbalance"] = float(everyone[:, 0].max() / mean) if mean else 1.0
        return numbers

    def plan(self) -> str:
        """Returns where each table's rows are, what they take, and why, of all workers."""
        with self._together():
            return report([self._held(name, sent) for name, sent in self._sent()])

    def _held(self, name: str, sent: np.ndarray) -> Held:
        mine = np.zeros([2], np.int64)
        for home in self._mine:
            table = home.tables[name]
            mine += home.call(
                ("held", name),
                lambda table=table: tf.stack([table.map.size(), table.refused_bytes()]),
            )
        rows, refused = self.collectives.all_reduce([tf.constant(mine)])[0].numpy().tolist()
        table = self.table(name)
        training, _, gradients = sent
        in_training = traffic(np.array([training, 0, gradients]), table.config.output_dim)
        return Held(
            name, self._place, table.config.output_dim, list(table.store.slots()), rows,
            table.store.row_bytes(), refused, int(state.step_of(self._homes[0], name)),
            sum(in_training.values()),
        )  # fmt: skip

    def set_rows(self, ids: np.ndarray, rows: np.ndarray, name: str | None) -> None:
        """Sets the rows of ids; each place takes its own."""
        ids, rows = np.asarray(ids, np.int64), np.asarray(rows, np.float32)
        if len(np.unique(ids)) != ids.size or ids.ndim != 1:
            raise ValueError(
                "Rows are set for ids, each named once. Received: ids of shape "
                f"{ids.shape}, {len(np.unique(ids))} of them different."
            )
        arrays = {"ids": ids, "rows": rows}
        state.check(self.table(name), arrays)
        with self._setting_rows():
            for home in self._mine:
                state.put(home, self.table(name).config.name, arrays)

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
        with self._setting_rows():
            for ids, rows in (piece for part in parts for piece in part.pieces()):
                arrays = {"ids": ids.astype(np.int64), "rows": rows}
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


def in_workers(
    wanted: Wanted,
    collectives: Collectives,
    strategy: tf.distribute.Strategy | None,
    optimizers: Mapping[str, Any],
) -> Tables:
    """Returns tables whose rows are in the workers' memory.

    Args:
      wanted: what they are made from.
      collectives: the workers.
      strategy: the one that they are made under, None for none.
      optimizers: of tables that have one of their own, by name.
    """
    variables = {
        group: RowVariable(
            View(wanted.expected(group, collectives.size)),
            np.zeros(group.width, np.float32),
            True,
            new_name(),
            strategy,
        )
        for group in wanted.groups
    }
    trainers = {
        group: Trainer(optimizers[group.table], variables[group])
        for group in wanted.groups
        if group.table is not None
    }
    home = Home(collectives.rank, collectives.size, wanted, variables)
    exchange = Exchange(collectives)
    routes = {group: BetweenWorkers(exchange, finder) for group, finder in home.finders.items()}
    place = place_in_workers(collectives.size)
    return Tables(wanted, collectives, [home], place, variables, routes, trainers)


def _split(rows: tf.Tensor, bags: Sequence[Bags]) -> list[tf.Tensor]:
    """Returns each feature's rows of those that were looked up together."""
    if len(bags) == 1:
        return [rows]
    parts = tf.split(rows, tf.stack([tf.size(bag.ids) for bag in bags]), num=len(bags))
    return [tf.ensure_shape(part, [None, rows.shape[-1]]) for part in parts]
