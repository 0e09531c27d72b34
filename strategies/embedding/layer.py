"""What Keras 3's and tf_keras's layer have in common; each is made from it in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.embedding.combine import Bags
from strategies.embedding.config import (
    COMBINERS,
    UNSEEN,
    Admission,
    Eviction,
    FeatureConfig,
    TableConfig,
)
from strategies.embedding.initial import initial_rows
from strategies.embedding.tables import Tables, Wanted
from strategies.extended import ReplicatedExtended
from strategies.row_variable import know_slots
from strategies.workers import collectives_of


class EmbeddingLayer:
    """The base of `DistributedEmbedding`; see there."""

    # Tells Keras 3 to leave XLA out, which has no hash tables.
    supports_jit = False
    initializers: Any  # keras.initializers or tf_keras.initializers
    # Of Keras's layer.
    name: str
    trainable: bool
    compute_dtype: str
    add_weight: Callable

    def _configure(
        self,
        output_dim: int | None,
        input_dim: int | None,
        combiner: str | None,
        embeddings_initializer: Any,
        features: Mapping[str, FeatureConfig] | None,
        admission: Admission | None,
        eviction: Eviction | None,
        mask_zero: bool,
        unseen: str,
        seed: int,
    ) -> None:
        """Checks and keeps the constructor's arguments."""
        if (output_dim is None) == (features is None):
            which = "neither" if features is None else "both"
            raise ValueError(
                "A layer has one table of output_dim numbers a row, or the tables of its "
                f"features. Received: {which}. Give output_dim or features."
            )
        if combiner not in COMBINERS:
            raise ValueError(
                f"combiner is one of {', '.join(map(repr, COMBINERS))}. Received: {combiner!r}."
            )
        if unseen not in UNSEEN:
            raise ValueError(
                f"unseen is one of {', '.join(map(repr, UNSEEN))}. Received: {unseen!r}."
            )
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"seed is a whole number. Received: {seed!r}.")
        if features is None and output_dim is not None:
            table = TableConfig(
                self.name, output_dim, input_dim, embeddings_initializer, admission, eviction
            )
            given = {"": FeatureConfig(table, combiner)}
        else:
            of_tables = {
                "input_dim": input_dim,
                "combiner": combiner,
                "admission": admission,
                "eviction": eviction,
            }
            named = [name for name, value in of_tables.items() if value is not None]
            if named or embeddings_initializer != "uniform":
                raise ValueError(
                    "With features, what concerns a table is said in its TableConfig, and the "
                    "combiner in the FeatureConfig. Received: "
                    f"{', '.join(named) or 'embeddings_initializer'}. Move it there."
                )
            given = {name: _feature(value) for name, value in (features or {}).items()}
        self._is_single = features is None
        tables = _tables(given)
        self.mask_zero = mask_zero
        self.unseen = unseen
        self.seed = seed
        self._collectives = collectives_of(_strategy())
        initial = {name: self._initializer(table) for name, table in tables.items()}
        self._wanted = Wanted(given, initial)
        self._tables: Tables | None = None
        if not tf.distribute.has_strategy():
            know_slots()

    def _initializer(self, config: TableConfig) -> Any:
        initializer = self.initializers.get(config.embeddings_initializer)
        kind, fields = type(initializer).__name__, initializer.get_config()
        return initial_rows(kind, fields, self.seed, config.name, config.output_dim)

    @property
    def _features(self) -> Mapping[str, FeatureConfig]:
        return self._wanted.features

    def _build_tables(self) -> None:
        """Makes the variables."""
        strategy = _strategy() if tf.distribute.has_strategy() else None
        tables = Tables(self._wanted, self._collectives, self.unseen, strategy)
        for variable in tables.variables:

            def made(next_creator: Any, variable: Any = variable, **kwargs: Any) -> Any:
                return variable

            with tf.variable_creator_scope(made):
                self.add_weight(
                    name=variable.table_name, shape=tuple(variable.shape), initializer="zeros",
                    dtype="float32",
                )  # fmt: skip
        self._tables = tables

    def _looked_up(self, inputs: Any, weights: Any, training: Any) -> Any:
        """Returns each feature's output."""
        if self._is_single:
            inputs = {"": inputs}
            weights = None if weights is None else {"": weights}
        weights = {} if weights is None else weights
        _check_names(inputs, weights, self._features)
        bags = {
            name: Bags(
                _tensor(inputs[name]),
                _tensor(weights.get(name)),
                feature.combiner,
                self.mask_zero,
            )
            for name, feature in self._features.items()
        }
        is_training = bool(training) and self.trainable
        outputs = self._built_tables().outputs(bags, is_training, self.compute_dtype)
        return outputs[""] if self._is_single else outputs

    def evict(self) -> dict[str, int]:
        """Takes away the rows that the tables' `eviction` names; returns how many, by table.

        All workers call it together, for example at the end of an epoch. An id that comes again
        gets a new row.
        """
        return self._built_tables().evict()

    def statistics(self) -> dict[str, dict[str, float]]:
        """Returns what happened to each table since it was made, on all workers.

        All workers call it together. For each table: `rows` there are, `lookups` (ids that came
        in training, each occurrence) and how many were `unique` within a step and a worker's
        part, `new` rows, ids `refused` by admission, rows `evicted`, `unique_ratio`, and
        `imbalance`, the rows of the worker that has most to the mean of all workers.
        """
        return self._built_tables().statistics()

    def rows(self, table: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns this worker's ids of a table, int64 [n] in rising order, and rows [n, width].

        Args:
          table: its name; None is the layer's only one.
        """
        return self._built_tables().rows(table)

    def _built_tables(self) -> Tables:
        if self._tables is None:
            raise ValueError(
                "A layer has tables once it is built. Received: one that was not called. Call it "
                "or build it first."
            )
        return self._tables

    def _config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as plain values."""

        def plain(table: TableConfig) -> dict[str, Any]:
            fields = table.to_dict()
            initializer = self.initializers.get(fields["embeddings_initializer"])
            return {**fields, "embeddings_initializer": self.initializers.serialize(initializer)}

        common = {"mask_zero": self.mask_zero, "unseen": self.unseen, "seed": self.seed}
        if self._is_single:
            feature = self._features[""]
            fields = plain(feature.table)
            del fields["name"]
            return {**common, **fields, "combiner": feature.combiner}
        return {
            **common,
            "features": {
                name: {"table": plain(feature.table), "combiner": feature.combiner}
                for name, feature in self._features.items()
            },
        }


def _strategy() -> tf.distribute.Strategy:
    strategy = tf.distribute.get_strategy()
    is_ours = isinstance(strategy.extended, ReplicatedExtended)
    if tf.distribute.has_strategy() and not is_ours:
        raise ValueError(
            "DistributedEmbedding works without a strategy and under those of this package. "
            f"Received: {type(strategy).__module__}.{type(strategy).__name__}. Use "
            "strategies.MirroredStrategy or strategies.MultiWorkerMirroredStrategy."
        )
    return strategy


def _feature(value: Any) -> FeatureConfig:
    if isinstance(value, FeatureConfig):
        return value
    if isinstance(value, Mapping):
        return FeatureConfig(TableConfig.from_dict(value["table"]), value["combiner"])
    raise ValueError(f"A feature is a FeatureConfig. Received: {value!r}.")


def _tables(features: Mapping[str, FeatureConfig]) -> dict[str, TableConfig]:
    """Returns the tables of features by name."""
    if not features:
        raise ValueError("A layer has a feature or more. Received: none. Name one.")
    tables: dict[str, TableConfig] = {}
    for feature in features.values():
        table = feature.table
        if tables.setdefault(table.name, table) != table:
            raise ValueError(
                "Tables have names of their own. Received: two different ones named "
                f"{table.name!r}. Rename one, or give both features the same TableConfig."
            )
    return tables


def _check_names(inputs: Any, weights: Any, features: Mapping[str, FeatureConfig]) -> None:
    if not isinstance(inputs, Mapping) or set(inputs) != set(features):
        given = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise ValueError(
            f"The layer is called with a dictionary of its features, {sorted(features)}. "
            f"Received: {given}."
        )
    if not isinstance(weights, Mapping) or not set(weights) <= set(features):
        raise ValueError(
            f"Weights are a dictionary of some of the features {sorted(features)}. "
            f"Received: {sorted(weights) if isinstance(weights, Mapping) else weights!r}."
        )


def _tensor(value: Any) -> Any:
    if value is None or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    return tf.convert_to_tensor(value)
