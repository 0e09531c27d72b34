"""All tables of a layer: what is looked up together, and what happens to rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tensorflow import in_save_context
from strategies.collectives import Collectives
from strategies.embedding import checkpoint, plain, state
from strategies.embedding.combine import Bags
from strategies.embedding.config import FeatureConfig, TableConfig
from strategies.embedding.exchange import Exchange
from strategies.embedding.lookup import Lookup
from strategies.embedding.overflow import Overflow
from strategies.embedding.plan import Held, place_of, report
from strategies.embedding.sent import traffic
from strategies.embedding.serving import Serving
from strategies.embedding.store import RowStore
from strategies.embedding.table import COUNTED, Table
from strategies.embedding.trainer import Trainer
from strategies.row_variable import new_name


@dataclass(frozen=True)
class Wanted:
    """What a layer's tables are made from.

    Attributes:
      features: which look up in them.
      initial: for each table's name, what makes first rows.
    """

    features: Mapping[str, FeatureConfig]
    initial: Mapping[str, Callable[[tf.Tensor], tf.Tensor]]


class Tables:
    """The tables of a layer, those of one width and optimizer with their rows together.

    Args:
      wanted: what they are made from.
      collectives: the workers.
      unseen: "initial" or "zeros", what an id has that has no row.
      strategy: the one that they are made under, None for none.
      optimizers: by table, those that are not trained by the model's.
    """

    def __init__(
        self,
        wanted: Wanted,
        collectives: Collectives,
        unseen: str,
        strategy: tf.distribute.Strategy | None,
        optimizers: Mapping[str, Any],
    ):
        self.collectives = collectives
        self.exchange = Exchange(collectives)
        self.by_name: dict[str, Table] = {}
        self._features = features = wanted.features
        self._lookups: list[tuple[list[Table], Lookup]] = []
        together: dict[tuple[int, str | None], list[TableConfig]] = {}
        for config in {feature.table.name: feature.table for feature in features.values()}.values():
            apart = config.name if config.name in optimizers else None
            together.setdefault((config.output_dim, apart), []).append(config)
        for (width, apart), configs in together.items():
            store = RowStore(width, new_name(), strategy)
            if apart is not None:
                store.trainer = Trainer(optimizers[apart], store.variable)
            tables = [
                Table(each, store, wanted.initial[each.name], self._overflow(each, store))
                for each in configs
            ]
            self.by_name.update({each.config.name: each for each in tables})
            self._lookups.append((tables, Lookup(store, tables, self.exchange, unseen)))
        self.serving = Serving(self.by_name, self.exchange, unseen)

    def _overflow(self, config: TableConfig, store: RowStore) -> Overflow | None:
        if config.overflow == "error" or config.input_dim is None:
            return None
        return Overflow(store, config.input_dim, self.collectives.rank, self.collectives.size)

    @property
    def stores(self) -> list[RowStore]:
        """Where the rows are, one for each width and optimizer."""
        return [tables[0].store for tables, _ in self._lookups]

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

    def _members(self, table: Table) -> list[str]:
        """Returns the features that look up in a table."""
        name = table.config.name
        return [feature for feature, config in self._features.items() if config.table.name == name]

    def evict(self) -> dict[str, int]:
        """Takes away the rows that the tables' `eviction` names; returns how many, by table."""
        gone = [table.evict() for table in self.by_name.values()]
        total = self.collectives.all_reduce([tf.stack(gone)])[0].numpy().tolist()
        return dict(zip(self.by_name, total, strict=True))

    def statistics(self) -> dict[str, dict[str, float]]:
        """Returns what happened to each table on all workers."""
        result = {}
        for name, table, sent in self._with_sent():
            mine = tf.concat([[table.map.size()], table.counts.read_value(), sent], 0)
            everyone = self.collectives.all_gather(mine[tf.newaxis]).numpy()
            total = everyone.sum(axis=0)
            numbers = dict(zip(("rows", *COUNTED), total.tolist(), strict=False))
            numbers |= traffic(total[1 + len(COUNTED) :], table.config.output_dim)
            numbers["unique_ratio"] = numbers["unique"] / max(numbers["lookups"], 1)
            mean = total[0] / len(everyone)
            numbers["imbalance"] = float(everyone[:, 0].max() / mean) if mean else 1.0
            result[name] = numbers
        return result

    def plan(self) -> str:
        """Returns where each table's rows are, what they take, and why, of all workers."""
        place = place_of(self.collectives.size)
        held = []
        for name, table, sent in self._with_sent():
            mine = [table.map.size(), table.refused_bytes(), *sent.tolist()]
            total = self.collectives.all_reduce([tf.stack(mine)])[0].numpy()
            rows, refused = total[:2].tolist()
            training, _, gradients = total[2:]
            in_training = traffic(np.array([training, 0, gradients]), table.config.output_dim)
            lookups = int(table.store.step.read_value())
            held.append(
                Held(name, place, table.config.output_dim, list(table.store.slots()), rows,
                     table.store.row_bytes(), refused, lookups, sum(in_training.values()))
            )  # fmt: skip
        return report(held)

    def _with_sent(self) -> list[tuple[str, Table, np.ndarray]]:
        """Returns each table with its name and what this worker sent for it."""
        return [
            (table.config.name, table, sent)
            for tables, lookup in self._lookups
            for table, sent in zip(tables, lookup.sent.counts(), strict=True)
        ]

    def set_rows(self, ids: np.ndarray, rows: np.ndarray, name: str | None) -> None:
        """Sets the rows of ids; each worker takes its own."""
        ids, rows = np.asarray(ids, np.int64), np.asarray(rows, np.float32)
        if len(np.unique(ids)) != ids.size or ids.ndim != 1:
            raise ValueError(
                "Rows are set for ids, each named once. Received: ids of shape "
                f"{ids.shape}, {len(np.unique(ids))} of them different."
            )
        state.put(self.table(name), {"ids": ids, "rows": rows}, self.exchange)

    def export(self, directory: str, kind: str, name: str | None) -> None:
        """Writes a table's ids and rows to plain files; see `plain`."""
        plain.write(directory, kind, self.rows(name), self.collectives)

    def take(self, directory: str, name: str | None) -> None:
        """Sets the rows of ids from plain files; each worker takes its own."""
        table = self.table(name)
        parts = plain.read(directory)
        keys = np.concatenate([part()[0] for part in parts])
        if keys.dtype.kind not in "iu" or keys.ndim != 1 or len(np.unique(keys)) != keys.size:
            raise ValueError(
                "Rows are imported for ids, integers that are named once in all parts. Received: "
                f"{keys.dtype} of shape {keys.shape} in {directory!r}, {len(np.unique(keys))} of "
                "them different."
            )
        for part in parts:
            ids, rows = part()
            if len(ids):
                state.put(table, {"ids": ids.astype(np.int64), "rows": rows}, self.exchange)

    def packed(self) -> state.Arrays:
        """Returns all rows of all workers, which all call it."""
        return state.packed(self.by_name, self.collectives)

    def unpack(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets all rows to what `packed` returned."""
        state.unpack(self.by_name, arrays, self.exchange)

    def save(self, directory: str, delta: bool) -> str:
        """Saves the rows to a directory; see `checkpoint`."""
        return checkpoint.save(self.by_name, directory, self.collectives, delta)

    def load(self, directory: str) -> None:
        """Sets the rows from a directory; see `checkpoint`."""
        checkpoint.load(self.by_name, directory, self.exchange)

    def rows(self, name: str | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns this worker's ids of a table in rising order, and their rows."""
        table = self.table(name)
        ids, rows = (each.numpy() for each in table.map.all())
        order = np.argsort(ids)
        return ids[order], table.store.variable.table.gather(tf.constant(rows[order])).numpy()

    def table(self, name: str | None) -> Table:
        """Returns a table by its name; None is the only one.

        Raises:
          ValueError: if there is no such table.
        """
        if name is None and len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        if name not in self.by_name:
            raise ValueError(
                f"A table is one of {', '.join(map(repr, self.by_name))}. Received: {name!r}."
            )
        return self.by_name[name]


def _split(rows: tf.Tensor, bags: Sequence[Bags]) -> list[tf.Tensor]:
    """Returns each feature's rows of those that were looked up together."""
    if len(bags) == 1:
        return [rows]
    parts = tf.split(rows, tf.stack([tf.size(bag.ids) for bag in bags]), num=len(bags))
    return [tf.ensure_shape(part, [None, rows.shape[-1]]) for part in parts]
