"""Base class of the layers for Keras 3 and tf_keras."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives.workers import collectives_of
from strategies.compat.keras import tensorflow_variable
from strategies.embedding.backends.backend import backend_of
from strategies.embedding.checkpoint import keras_saving as saving
from strategies.embedding.checkpoint.keras_saving import RowsInCheckpoint, serialize_config
from strategies.embedding.config import Admission, Eviction, FeatureConfig, TableConfig
from strategies.embedding.inputs import Bags
from strategies.embedding.lookup.batch_keys import BatchKeys
from strategies.embedding.shard.initializers import initial_rows
from strategies.embedding.shard.table_shard import Group, TableSpecs
from strategies.embedding.tables import Tables
from strategies.embedding.validation import (
    bags_of,
    check_dtype,
    check_no_table_settings,
    check_optimizer,
    check_output_dim_or_features,
    check_settings,
    check_symbolic_inputs,
    drop_stock_arguments,
    feature_from,
    is_training,
    mask_of,
    shape_of,
    strategy_of_tables,
    tables_of,
)
from strategies.variables.row_variable import RowVariable, recognize_slots


class EmbeddingLayer:
    """Base class of `strategies.DistributedEmbedding`.

    A layer is created, built and used at different times: it is created in a strategy's scope; it
    is built when it is first called, perhaps outside of the scope and while a function is being
    traced; and its rows may be restored before or after that. So arguments are checked against the
    strategy when the layer is created, tables are created by `build`, and rows that are restored
    earlier are kept until then (`_restored`).

    Attributes:
      made_under: strategy that the layer was created under.
      specs: specification of the tables.
      tables: the tables; None before the layer is built.
    """

    initializers: Any  # keras.initializers or tf_keras.initializers
    optimizers: Any  # keras.optimizers or tf_keras.optimizers
    not_equal: Callable[..., Any]  # for tensors and Keras's symbolic tensors
    # Attributes of Keras's base layer.
    name: str
    trainable: bool
    weights: Any
    compute_dtype: str
    built: bool
    add_loss: Callable[..., Any]
    add_weight: Callable[..., Any]

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
        overflow: str = "error",
        optimizer: Any = None,
        l2: float = 0.0,
        placement: str = "sharded",
        row_dtype: str = "float32",
        slot_dtype: str = "float32",
        exchange_dtype: str = "float32",
        mask_zero: bool = False,
        unseen: str = "initial",
        seed: int = 0,
        **kwargs: Any,
    ):
        # Casting ids that are floats to the compute dtype of a mixed policy would round them.
        super().__init__(**{**drop_stock_arguments(kwargs), "autocast": False})
        self.supports_jit = False  # tells Keras 3 not to compile with XLA, which has no hash tables
        check_dtype(self)
        check_output_dim_or_features(output_dim, features)
        check_settings(combiner, unseen, seed)
        # The arguments of a single table configure a table with the layer's name and a feature "".
        if features is None and output_dim is not None:
            # In a saved configuration, admission and eviction are dictionaries.
            table = TableConfig.from_dict(
                {
                    "name": self.name,
                    "output_dim": output_dim,
                    "input_dim": input_dim,
                    "embeddings_initializer": embeddings_initializer,
                    "admission": admission,
                    "eviction": eviction,
                    "overflow": overflow,
                    "optimizer": optimizer,
                    "l2": l2,
                    "placement": placement,
                    "row_dtype": row_dtype,
                    "slot_dtype": slot_dtype,
                    "exchange_dtype": exchange_dtype,
                }
            )
            by_name = {"": FeatureConfig(table, combiner)}
        else:
            of_tables = {
                "input_dim": input_dim,
                "combiner": combiner,
                "admission": admission,
                "eviction": eviction,
                "overflow": None if overflow == "error" else overflow,
                "optimizer": optimizer,
                "l2": l2 or None,
                "placement": None if placement == "sharded" else placement,
                "row_dtype": None if row_dtype == "float32" else row_dtype,
                "slot_dtype": None if slot_dtype == "float32" else slot_dtype,
                "exchange_dtype": None if exchange_dtype == "float32" else exchange_dtype,
            }
            check_no_table_settings(of_tables, embeddings_initializer)
            by_name = {name: feature_from(value) for name, value in (features or {}).items()}
        self._is_single = features is None
        tables = tables_of(by_name)
        self.mask_zero = self.supports_masking = mask_zero
        self.unseen = unseen
        self.seed = seed
        self.made_under = strategy_of_tables()
        self._collectives = collectives_of(self.made_under)
        initial = {name: self._initializer(table) for name, table in tables.items()}
        self.specs = TableSpecs(by_name, initial, unseen)
        backend_of(self.made_under).check(self.specs)
        # Optimizers of the tables that the model's optimizer does not train, by table.
        self.table_optimizers = {
            name: self._optimizer(table)
            for name, table in tables.items()
            if table.optimizer is not None
        }
        for position, each in enumerate(self.table_optimizers.values()):
            # Checkpoints track a Keras layer's attributes, but not the values of a dictionary.
            setattr(self, f"_table_optimizer_{position}", each)
        self._lead_weight: Any = None
        self.tables: Tables | None = None
        # The arguments of a `restore_rows` that was called before the layer was built.
        self._restored: tuple[Mapping[str, np.ndarray], bool] | None = None
        # Set by prefetch_rows if workers exchange rows ahead. Not a dictionary, whose class Keras
        # would replace.
        self._batch_keys: Mapping[Group, BatchKeys] | None = None
        self._saved_rows = RowsInCheckpoint(self)
        self._recognize_slots()

    def _recognize_slots(self) -> None:
        # Under a strategy of this package, its `extended` creates the slot variables.
        if not tf.distribute.has_strategy():
            recognize_slots()

    def _initializer(self, config: TableConfig) -> Any:
        initializer = self.initializers.get(config.embeddings_initializer)
        kind, fields = type(initializer).__name__, initializer.get_config()
        initial = initial_rows(kind, fields, self.seed, config.name, config.output_dim)
        if config.row_dtype == "float32":
            return initial
        # An id without a row has the values that its row would get.
        return lambda ids: tf.cast(tf.cast(initial(ids), config.row_dtype), tf.float32)

    def _optimizer(self, config: TableConfig) -> Any:
        """Returns a copy of a table's optimizer, which may be shared with another table."""
        check_optimizer(config, self.compute_dtype)
        optimizer = self.optimizers.get(config.optimizer)
        return type(optimizer).from_config(optimizer.get_config())

    def build(self, input_shape: Any = None) -> None:
        """Creates the tables."""
        del input_shape
        self._recognize_slots()
        strategy = strategy_of_tables() if tf.distribute.has_strategy() else self.made_under
        tables = backend_of(strategy).create_tables(
            self.specs, self._collectives, self.table_optimizers
        )
        for variable, fused_optimizer in tables.weights:
            weight = self._weight_of(variable, trainable=fused_optimizer is None)
            if fused_optimizer is not None:
                fused_optimizer.build(weight, self._lead())
        self.tables = tables
        self.built = True
        if self._batch_keys is not None:
            tables.exchange_ahead(self._batch_keys)
        if self._restored is not None:
            self.restore_rows(*self._restored)
            self._restored = None

    def _weight_of(self, variable: RowVariable, trainable: bool) -> Any:
        """Adds a table's variable to the layer's weights; returns the weight."""

        def create(next_creator: Any, **kwargs: Any) -> Any:
            return variable

        with tf.variable_creator_scope(create):
            return self.add_weight(
                name=variable.table_name, shape=tuple(variable.shape), initializer="zeros",
                dtype="float32", trainable=trainable,
            )  # fmt: skip

    def _lead(self) -> Any:
        """Returns the scalar weight that stands for the rows of tables with their own optimizer.

        Keras differentiates the loss with respect to this weight instead of the rows, so the
        model's optimizer does not see the rows. The weight and its gradient are always 0.
        """
        if self._lead_weight is None:
            self._lead_weight = self.add_weight(
                name="lead", shape=(), initializer="zeros", dtype="float32"
            )
        return self._lead_weight

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer, after checking that its inputs are not placeholders of the other Keras.

        Raises:
          TypeError: if one is.
        """
        check_symbolic_inputs((args, kwargs), self.optimizers.__name__.partition(".")[0])
        return super().__call__(*args, **kwargs)  # type: ignore[misc]  # Keras's Layer

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Looks up the rows of ids.

        Args:
          inputs: integer ids in a dense, ragged or sparse tensor; with `features`, a dictionary of
            them.
          weights: weight of each id's row in the combiner, in the same form as `inputs`.
          training: whether ids get rows and rows get gradients. None, which Keras passes if the
            model's `call` has no such argument, is true under a `tf.GradientTape`, as in `fit`, and
            false elsewhere.
        """
        return self._outputs(inputs, weights, training)

    # tf_keras makes AutoGraph convert a layer's `call` and all functions that it calls. That would
    # take seconds in each process, for code that has no condition on a tensor.
    @tf.autograph.experimental.do_not_convert
    def _outputs(self, inputs: Any, weights: Any, training: bool | None) -> Any:
        self._recognize_slots()  # an optimizer may be built next, in another thread or scope
        bags = self.bags(inputs, weights)
        training = is_training(training) if self.trainable else False
        outputs, penalties = self._require_tables().outputs(bags, training, self.compute_dtype)
        if penalties:
            # Keras divides a layer's losses by the number of replicas, but these already are this
            # replica's shares of the penalty.
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            self.add_loss(tf.add_n(penalties) * replicas)
        return outputs[""] if self._is_single else outputs

    def expect_batches(self, replicas: int) -> Mapping[Group, BatchKeys]:
        """Lets each step exchange the rows of the next batch; all workers must call it together.

        Args:
          replicas: the number of replicas of a worker.

        Returns:
          What takes the keys of the next batches, by group.

        Raises:
          ValueError: if the layer was trained before, or a table has an L2 penalty.
        """
        if any(config.l2 for configs in self.specs.groups.values() for config in configs):
            raise ValueError(
                "The rows of a table with an L2 penalty cannot be prefetched by workers in step, "
                "because the penalty depends on the ids of all workers. Received: a layer with l2. "
                "Omit prefetch_rows, or l2."
            )
        if self._batch_keys is None:
            keys = MappingProxyType({group: BatchKeys(replicas) for group in self.specs.groups})
            if self.tables is not None:
                self.tables.exchange_ahead(keys)
            self._batch_keys = keys
        return self._batch_keys

    def bags(self, inputs: Any, weights: Any = None) -> dict[str, Bags]:
        """Returns the bags of ids by feature."""
        if self._is_single:
            inputs = {"": inputs}
            weights = None if weights is None else {"": weights}
        return bags_of(inputs, {} if weights is None else weights, self.specs, self.mask_zero)

    @property
    def embeddings(self) -> Any:
        """The weight of the layer's only table.

        In one process, and if the ids are 0, 1, 2, ..., its value is the matrix of their rows, as
        in `keras.layers.Embedding`. Otherwise reading it raises an error.

        Raises:
          ValueError: if the layer has several tables, or is not built.
        """
        variables = [variable for variable, _ in self._require_tables().weights]
        if not self._is_single:
            raise ValueError(
                "Only a layer with a single table has the attribute embeddings. Received: the "
                f"layer {self.name!r} with {len(self.specs.initial)} tables. Call rows(table)."
            )
        return next(w for w in self.weights if tensorflow_variable(w) is variables[0])

    @property
    def output_dim(self) -> int:
        """The width of a row of the layer's only table, as in `keras.layers.Embedding`.

        Raises:
          AttributeError: if the layer has several tables.
        """
        return self._only_table("output_dim").output_dim

    @property
    def input_dim(self) -> int | None:
        """The maximum number of ids of the layer's only table; None if there is no limit.

        Raises:
          AttributeError: if the layer has several tables.
        """
        return self._only_table("input_dim").input_dim

    @property
    def embeddings_initializer(self) -> Any:
        """The initializer of the rows of the layer's only table.

        Raises:
          AttributeError: if the layer has several tables.
        """
        return self.initializers.get(
            self._only_table("embeddings_initializer").embeddings_initializer
        )

    def _only_table(self, attribute: str) -> TableConfig:
        if not self._is_single:
            # Not a ValueError, so that hasattr returns False.
            raise AttributeError(
                f"Only a layer with a single table has the attribute {attribute}. Received: the "
                f"layer {self.name!r} with {len(self.specs.initial)} tables. Read it from the "
                "TableConfig that you passed."
            )
        return self.specs.features[""].table

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the output's shape for dense ids; with `features`, a dictionary of shapes."""
        return self._of_each(shape_of, input_shape)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns the mask of the ids other than 0; None without `mask_zero` or with a combiner."""
        del mask
        if not self.mask_zero:
            return None
        return self._of_each(partial(mask_of, not_equal=self.not_equal), inputs)

    def _of_each(self, function: Callable[..., Any], value: Any) -> Any:
        """Calls a function with each feature's part of a value, and with the feature."""
        features = self.specs.features
        if self._is_single:
            return function(value, features[""])
        return {name: function(value[name], feature) for name, feature in features.items()}

    def evict(self) -> dict[str, int]:
        """Removes the rows that the tables' `eviction` rules select by age, count or seconds.

        All workers must call it together, for example at the end of an epoch. An id that occurs
        again gets a new row. A rule with `every` removes rows during training as well.

        Returns:
          The number of removed rows by table.
        """
        return self._require_tables().evict()

    def statistics(self) -> dict[str, dict[str, float]]:
        """Returns statistics of each table since its creation, over all workers.

        All workers must call it together. The statistics of a table are:

        * `rows`: number of rows now.
        * `lookups`: number of ids looked up in training, counting every occurrence.
        * `unique`: number of ids looked up in training, counting each id once per step and worker.
        * `unique_ratio`: ratio of `unique` to `lookups`.
        * `new`, `evicted`: number of rows created, and of rows that a rule or a full table removed.
          1 - `new` / `unique` is the share of lookups that found a row.
        * `refused`, `shared`: number of ids that admission refused, or that got the shared row.
        * `imbalance`: largest number of rows on a worker or server, divided by the mean.
        * `prefetched`: number of rows from `prefetch_rows`, on each replica by itself.
        * `bytes_ids`, `bytes_rows`, `bytes_gradients`: bytes sent between workers, or between
          workers and servers.
        """
        return self._require_tables().statistics()

    def plan(self) -> str:
        """Returns a printable report of each table's placement, the reason for it, and its memory.

        All workers must call it together. Bytes are those of all workers now, and include the slot
        variables that exist so far.
        """
        return self._require_tables().plan()

    def rows_by_owner(self) -> dict[str, dict[tuple[str, int], int]]:
        """Returns the number of rows of each table on each worker or server.

        All workers must call it together.

        Returns:
          For each table, the number of rows by owner: ("ps", 0) is the first server, ("worker", 1)
          the worker of rank 1.
        """
        return self._require_tables().rows_by_owner()

    def rows(self, table: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns this worker's ids of a table and their rows.

        With parameter servers, one worker returns the rows of each server: worker k of N returns
        those of the servers k, k + N, ...

        Args:
          table: name of the table; None is the layer's only table.

        Returns:
          The ids, int64 [n] in ascending order, and the rows, float32 [n, width].
        """
        return self._require_tables().rows(table)

    def set_rows(self, ids: np.ndarray, rows: np.ndarray, table: str | None = None) -> None:
        """Sets the rows of ids; other rows are unchanged.

        All workers must call it, either with the same ids or each with those that it owns.

        Args:
          ids: distinct ids, int64 [n].
          rows: their rows, float32 [n, width].
          table: name of the table; None is the layer's only table.

        Raises:
          ValueError: if an id is repeated, or the rows do not fit the table.
        """
        self._require_tables().set_rows(ids, rows, table)

    def save_rows(self, directory: str, *, delta: bool = False) -> str:
        """Saves rows, slot variables and counts in NumPy's format.

        All workers must call it with the same directory, and each writes its part. The rows saved
        there before are replaced once all parts are written.

        Args:
          directory: a directory that all workers can access.
          delta: whether to save only the rows that were trained on since the last save to the
            directory, in addition to those saved there. All rows are saved if rows were set, or
            restored from elsewhere, in the meantime, or if another job saved to the directory.

        Returns:
          The path of the new folder in the directory.

        Raises:
          ValueError: if `delta` is true and the directory has no saved rows.
        """
        return self._require_tables().save(directory, delta)

    def load_rows(self, directory: str) -> None:
        """Restores the rows that `save_rows` saved, with any number of workers.

        All workers must call it. Slot variables that do not exist yet are restored when the
        optimizer creates them.

        Args:
          directory: the directory that was passed to `save_rows`.

        Raises:
          ValueError: if the directory has no saved rows, or those of other tables, or a file is
            damaged.
        """
        self._require_tables().load(directory)

    def export_rows(self, directory: str, table: str | None = None, *, format: str = "npy") -> None:
        """Exports ids and rows to files that other systems can read.

        All workers must call it, and each writes its part: `part-00000-of-00002-keys.npy`, int64
        [n], and `part-00000-of-00002-values.npy`, float32 [n, width]; or one Parquet file with the
        columns `key` and `value`.

        Args:
          directory: an empty directory that all workers can access.
          table: name of the table; None is the layer's only table.
          format: "npy", or "parquet", which requires pyarrow.

        Raises:
          ValueError: if an argument is invalid, or the directory is not empty.
          ImportError: if pyarrow is not installed.
        """
        self._require_tables().export_rows(directory, format, table)

    def import_rows(self, directory: str, table: str | None = None) -> None:
        """Imports ids and rows from files written by `export_rows` or another system.

        All workers must call it; their number need not be that of the export. The rows of other
        ids and the slot variables are unchanged. Files of keys and values have matching names:
        `users-keys.npy` and `users-values.npy`.

        Args:
          directory: a directory with the files of one table.
          table: name of the table; None is the layer's only table.

        Raises:
          ValueError: if the files do not fit the table.
          ImportError: if they are Parquet files and pyarrow is not installed.
        """
        self._require_tables().import_rows(directory, table)

    def snapshot_rows(self) -> Mapping[str, np.ndarray]:
        """Returns the rows of all workers, for a checkpoint."""
        if self.tables is None:
            return {} if self._restored is None else self._restored[0]
        return self.tables.snapshot()

    def restore_rows(self, arrays: Mapping[str, np.ndarray], expects_slots: bool = True) -> None:
        """Restores the rows from a checkpoint, immediately or when the layer is built.

        Args:
          arrays: the result of `snapshot_rows`.
          expects_slots: whether slot variables that do not exist yet are restored when the
            optimizer creates them; otherwise they are omitted.
        """
        if self.tables is None:
            self._restored = arrays, expects_slots
        else:
            with tf.init_scope():  # a layer may be built while a function is traced
                self.tables.restore(arrays, expects_slots)

    def save_own_variables(self, store: Any) -> None:
        """Writes the rows to the store that Keras saves."""
        saving.to_store(self.snapshot_rows(), store)

    def load_own_variables(self, store: Any) -> None:
        """Restores the rows from the store that Keras saved.

        Their slot variables are restored if the optimizer has already created them. Otherwise Keras
        does not restore the optimizer's other state, either, and warns.
        """
        self.restore_rows(saving.from_store(store), expects_slots=False)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """Returns the objects to save; in a SavedModel, tables that work without this package."""
        children = super()._trackable_children(save_type, **kwargs)  # type: ignore[misc]
        if save_type != "savedmodel":
            return children
        without = {name: each for name, each in children.items() if each is not self._saved_rows}
        return {**without, **self._export()}

    def _export(self) -> dict[str, Any]:
        return {} if self.tables is None else self.tables.serving.parts

    def _require_tables(self) -> Tables:
        if self.tables is None:
            raise ValueError(
                f"The layer must be built first. Received: the layer {self.name!r}, which is not "
                "built. Call it, or call its build method."
            )
        return self.tables

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as plain values."""

        def plain(table: TableConfig) -> dict[str, Any]:
            fields = table.to_dict()
            initializer = self.initializers.get(fields["embeddings_initializer"])
            fields["embeddings_initializer"] = serialize_config(self.initializers, initializer)
            optimizer = self.table_optimizers.get(table.name)
            if optimizer is not None:
                fields["optimizer"] = serialize_config(self.optimizers, optimizer)
            return fields

        common = {**super().get_config()}  # type: ignore[misc]  # Keras's layer
        common |= {"mask_zero": self.mask_zero, "unseen": self.unseen, "seed": self.seed}
        if self._is_single:
            feature = self.specs.features[""]
            fields = plain(feature.table)
            del fields["name"]
            return {**common, **fields, "combiner": feature.combiner}
        return {
            **common,
            "features": {
                name: {"table": plain(feature.table), "combiner": feature.combiner}
                for name, feature in self.specs.features.items()
            },
        }
