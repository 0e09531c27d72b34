"""What Keras 3's and tf_keras's layer have in common; each is made from it in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.embedding import saving
from strategies.embedding.combine import Bags
from strategies.embedding.config import (
    COMBINERS,
    UNSEEN,
    Admission,
    Eviction,
    FeatureConfig,
    TableConfig,
)
from strategies.embedding.home import Wanted
from strategies.embedding.initial import initial_rows
from strategies.embedding.on_servers import on_servers
from strategies.embedding.saving import RowsInCheckpoint
from strategies.embedding.tables import Tables, in_workers
from strategies.extended import ReplicatedExtended
from strategies.row_variable import know_slots
from strategies.server.extended import ServerExtended
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
    built: bool
    add_weight: Callable

    def __init__(
        self,
        output_dim: int | None = None,
        input_dim: int | None = None,
        *,
        combiner: str | None = None,
        embeddings_initializer: Any = "uniform",
        features: Mapping[str, FeatureConfig] | None = None,
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        mask_zero: bool = False,
        unseen: str = "initial",
        seed: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
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
        self.mask_zero = self.supports_masking = mask_zero
        self.unseen = unseen
        self.seed = seed
        self._made_under = _strategy()
        self._collectives = collectives_of(self._made_under)
        initial = {name: self._initializer(table) for name, table in tables.items()}
        self._wanted = Wanted(given, initial, unseen)
        self._tables: Tables | None = None
        self._restored: Mapping[str, np.ndarray] | None = None
        self._saved_rows = RowsInCheckpoint(self)
        if not tf.distribute.has_strategy():
            know_slots()

    def _initializer(self, config: TableConfig) -> Any:
        initializer = self.initializers.get(config.embeddings_initializer)
        kind, fields = type(initializer).__name__, initializer.get_config()
        return initial_rows(kind, fields, self.seed, config.name, config.output_dim)

    @property
    def _features(self) -> Mapping[str, FeatureConfig]:
        return self._wanted.features

    def build(self, input_shape: Any = None) -> None:
        """Makes the tables."""
        del input_shape
        strategy = _strategy() if tf.distribute.has_strategy() else self._made_under
        if isinstance(strategy.extended, ServerExtended):
            tables = on_servers(self._wanted, strategy)
        else:
            given = strategy if tf.distribute.has_strategy() else None
            tables = in_workers(self._wanted, self._collectives, given)
        for variable in tables.variables:

            def made(next_creator: Any, variable: Any = variable, **kwargs: Any) -> Any:
                return variable

            with tf.variable_creator_scope(made):
                self.add_weight(
                    name=variable.table_name, shape=tuple(variable.shape), initializer="zeros",
                    dtype="float32",
                )  # fmt: skip
        self._tables = tables
        self.built = True
        if self._restored is not None:
            tables.unpack(self._restored)
            self._restored = None

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Returns the rows of ids.

        Args:
          inputs: ids, integers: a dense, ragged or sparse tensor; a dictionary with `features`.
          weights: what each id's row counts for, in the same form as `inputs`; for combiners.
          training: whether ids get rows.
        """
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

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns which ids are ids, with `mask_zero` and without a combiner."""
        del mask
        if not self.mask_zero:
            return None
        masks = {
            name: None if feature.combiner is not None else _mask(each)
            for (name, feature), each in zip(
                self._features.items(),
                [inputs] if self._is_single else [inputs[name] for name in self._features],
                strict=True,
            )
        }
        return masks[""] if self._is_single else masks

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
        `imbalance`, the rows of the worker or server that has most to the mean of all.
        """
        return self._built_tables().statistics()

    def rows(self, table: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns this worker's ids of a table, int64 [n] in rising order, and rows [n, width].

        With parameter servers each server's are one worker's, of N workers the k-th one's those
        of the servers k, k + N, ...

        Args:
          table: its name; None is the layer's only one.
        """
        return self._built_tables().rows(table)

    def set_rows(self, ids: np.ndarray, rows: np.ndarray, table: str | None = None) -> None:
        """Gives ids these rows, in place of what they had; other ids keep theirs.

        All workers call it, with the same ids or each with a part of them that it owns.

        Args:
          ids: int64 [n], each once.
          rows: float32 [n, width].
          table: its name; None is the layer's only one.

        Raises:
          ValueError: if the rows do not fit.
        """
        self._built_tables().set_rows(ids, rows, table)

    def save_rows(self, directory: str, *, delta: bool = False) -> str:
        """Saves rows, slot variables, counts and times; returns the name of the folder.

        All workers call it, and each writes its part, into the same directory. What was saved
        there before is replaced when all is written. The files are NumPy's.

        Args:
          directory: that all workers see.
          delta: whether to add what changed since, and leave what is there.

        Raises:
          ValueError: if there is nothing that a delta could build on.
        """
        return self._built_tables().save(directory, delta)

    def load_rows(self, directory: str) -> None:
        """Sets everything to what `save_rows` saved, by any number of workers.

        All workers call it. Slot variables that the optimizer makes later are set then.

        Raises:
          ValueError: if nothing was saved there, or other tables.
        """
        self._built_tables().load(directory)

    def packed_rows(self) -> Mapping[str, np.ndarray]:
        """Returns the rows of all workers, for a checkpoint."""
        if self._tables is None:
            return self._restored or {}
        return self._tables.packed()

    def unpack_rows(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets the rows from a checkpoint, at once or when the layer is built."""
        if self._tables is None:
            self._restored = arrays
        else:
            self._tables.unpack(arrays)

    def save_own_variables(self, store: Any) -> None:
        """Puts the rows into what Keras saves."""
        saving.to_store(self.packed_rows(), store)

    def load_own_variables(self, store: Any) -> None:
        """Sets the rows from what Keras saved."""
        self.unpack_rows(saving.from_store(store))

    def _built_tables(self) -> Tables:
        if self._tables is None:
            raise ValueError(
                "A layer has tables once it is built. Received: one that was not called. Call it "
                "or build it first."
            )
        return self._tables

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as plain values."""

        def plain(table: TableConfig) -> dict[str, Any]:
            fields = table.to_dict()
            initializer = self.initializers.get(fields["embeddings_initializer"])
            serialized = self.initializers.serialize(initializer)
            # Keras numbers objects by their place in memory, where another one may be by now.
            serialized.pop("shared_object_id", None)
            return {**fields, "embeddings_initializer": serialized}

        common = {**super().get_config()}  # type: ignore[misc]  # Keras's layer
        common |= {"mask_zero": self.mask_zero, "unseen": self.unseen, "seed": self.seed}
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


def _mask(ids: Any) -> Any:
    return None if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)) else tf.not_equal(ids, 0)


def _tensor(value: Any) -> Any:
    if value is None or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    return tf.convert_to_tensor(value)
