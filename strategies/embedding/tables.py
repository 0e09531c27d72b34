"""All tables of a layer: what is looked up together, and what happens to rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from strategies.alone import is_alone
from strategies.collectives import Collectives
from strategies.embedding import checkpoint, state
from strategies.embedding.combine import Bags
from strategies.embedding.exchange import Exchange
from strategies.embedding.home import Home, Wanted
from strategies.embedding.lookup import Lookup
from strategies.embedding.route import BetweenWorkers, Route
from strategies.embedding.table import COUNTED, Table
from strategies.row_variable import RowVariable, View, new_name


class Tables:
    """The tables of a layer, those of one width with their rows together.

    Args:
      wanted: what they are made from.
      collectives: the workers.
      homes: where the rows are; all of them, of which this worker saves and restores some.
      variables: what an optimizer sees, one for each width.
      routes: to the rows of each width.
    """

    def __init__(
        self,
        wanted: Wanted,
        collectives: Collectives,
        homes: Sequence[Home],
        variables: Mapping[int, RowVariable],
        routes: Mapping[int, Route],
    ):
        self.collectives = collectives
        self.variables = list(variables.values())
        self._homes = homes
        self._features = wanted.features
        self._lookups = [
            ([each.name for each in configs], Lookup(variables[width], routes[width]))
            for width, configs in wanted.by_width.items()
        ]

    @property
    def _mine(self) -> list[Home]:
        return [home for home in self._homes if home.is_mine]

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """In the block nobody trains."""
        self._homes[0].meet()
        yield
        self._homes[0].meet()

    def outputs(self, bags: Mapping[str, Bags], training: bool, dtype: str) -> dict:
        """Returns each feature's output."""
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
            return {name: self._statistics(name) for name in self._homes[0].tables}

    def _statistics(self, name: str) -> dict[str, float]:
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
        numbers["unique_ratio"] = numbers["unique"] / max(numbers["lookups"], 1)
        mean = total[0] / len(everyone)
        numbers["imbalance"] = float(everyone[:, 0].max() / mean) if mean else 1.0
        return numbers

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
        with self._together():
            for home in self._mine:
                state.put(home, self.table(name).config.name, arrays)

    def packed(self) -> state.Arrays:
        """Returns all rows of all workers, which all call it.

        Raises:
          ValueError: if one worker alone calls it, in a callback of the first worker.
        """
        if self.collectives.size > 1 and is_alone():
            raise ValueError(
                "Each worker has a part of an embedding, so all of them save together. Received: "
                "a callback of the first worker. Pass ModelCheckpoint to fit as it is, with "
                "strategies.own_path(path, strategy), or use the layer's save_rows."
            )
        with self._together():
            return state.packed(self._homes, self.collectives)

    def unpack(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets all rows to what `packed` returned."""
        with self._together():
            state.unpack(self._mine, arrays)

    def save(self, directory: str, delta: bool) -> str:
        """Saves the rows to a directory; see `checkpoint`."""
        with self._together():
            return checkpoint.save(self._homes, directory, self.collectives, delta)

    def load(self, directory: str) -> None:
        """Sets the rows from a directory; see `checkpoint`."""
        with self._together():
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
    wanted: Wanted, collectives: Collectives, strategy: tf.distribute.Strategy | None
) -> Tables:
    """Returns tables whose rows are in the workers' memory.

    Args:
      wanted: what they are made from.
      collectives: the workers.
      strategy: the one that they are made under, None for none.
    """
    variables = {
        width: RowVariable(View(), np.zeros(width, np.float32), True, new_name(), strategy)
        for width in wanted.by_width
    }
    home = Home(collectives.rank, collectives.size, wanted, variables)
    exchange = Exchange(collectives)
    routes = {width: BetweenWorkers(exchange, finder) for width, finder in home.finders.items()}
    return Tables(wanted, collectives, [home], variables, routes)


def _split(rows: tf.Tensor, bags: Sequence[Bags]) -> list[tf.Tensor]:
    """Returns each feature's rows of those that were looked up together."""
    if len(bags) == 1:
        return [rows]
    parts = tf.split(rows, tf.stack([tf.size(bag.ids) for bag in bags]), num=len(bags))
    return [tf.ensure_shape(part, [None, rows.shape[-1]]) for part in parts]
