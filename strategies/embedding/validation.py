"""Validation of a layer's constructor and call arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from strategies.compat.keras import dtype_policy_of
from strategies.core.extended import ReplicatedExtended
from strategies.embedding.config import COMBINERS, UNSEEN, FeatureConfig, TableConfig
from strategies.embedding.inputs import Bags
from strategies.embedding.shard.table_shard import TableSpecs
from strategies.utils.argument_checks import check_whole_number

# Unsupported arguments of the stock Embedding, each with the reason and an alternative.
_OF_STOCK = {
    "embeddings_regularizer": "A penalty cannot cover all rows, because a step reads only the rows "
    "of its ids. Use l2 for a penalty on these rows, or compile with AdamW to decay them",
    "embeddings_constraint": "A constraint cannot hold for all rows, because a step changes only "
    "the rows of its ids. Omit it, or normalize the looked-up rows in a layer",
    "weights": "Initial rows must be given with their ids. Build the layer, and call "
    "layer.set_rows(np.arange(len(weights)), weights)",
    "lora_rank": "LoRA cannot be used, because a sharded table is never materialized as one "
    "matrix. Train the rows themselves, or set layer.trainable = False",
    "lora_alpha": "LoRA cannot be used, because a sharded table is never materialized as one "
    "matrix. Omit it",
    "quantization_config": "Rows must be float32. Omit it",
    "input_length": "The shape of the ids cannot be set in advance; it is the shape of the input. "
    "Omit it",
    "autocast": "Ids cannot be cast, because they must stay exact. Omit it",
    "sparse": "The output cannot be sparse; it is dense, or ragged if the ids are. Omit it",
}


def drop_stock_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments without the stock Embedding's that are not supported here.

    >>> drop_stock_arguments({"name": "ids", "embeddings_constraint": None})
    {'name': 'ids'}

    Raises:
      ValueError: if an unsupported argument is set; the message has the reason.
    """
    for name, reason in _OF_STOCK.items():
        # Not by its truth value, because the argument may be an array.
        if arguments.get(name) is not None and arguments[name] is not False:
            raise ValueError(f"{reason}. Received: {name}={arguments[name]!r}.")
    return {name: value for name, value in arguments.items() if name not in _OF_STOCK}


def check_dtype(layer: Any) -> None:
    """Raises ValueError unless a layer's variables are float32 and not quantized."""
    policy = dtype_policy_of(layer)
    is_quantized = getattr(policy, "quantization_mode", None)
    if policy.variable_dtype != "float32" or is_quantized:
        raise ValueError(
            "The variable dtype of an embedding must be float32. Received: the dtype policy "
            f"{policy.name!r}. Create the layer with dtype='float32', 'mixed_bfloat16' or "
            "'mixed_float16'."
        )


def strategy_of_tables() -> tf.distribute.Strategy:
    """Returns the strategy that a layer is created under.

    Raises:
      ValueError: if it is a strategy of another package.
    """
    strategy = tf.distribute.get_strategy()
    is_ours = isinstance(strategy.extended, ReplicatedExtended)
    if tf.distribute.has_strategy() and not is_ours:
        raise ValueError(
            "DistributedEmbedding requires a strategy of this package, or none. Received: "
            f"{type(strategy).__module__}.{type(strategy).__name__}. Use "
            "strategies.MirroredStrategy or strategies.MultiWorkerMirroredStrategy."
        )
    return strategy


def feature_from(value: Any) -> FeatureConfig:
    """Returns a `FeatureConfig`, created from plain values if necessary."""
    if isinstance(value, FeatureConfig):
        return value
    if isinstance(value, Mapping):
        return FeatureConfig(TableConfig.from_dict(value["table"]), value["combiner"])
    raise ValueError(f"Each feature must be a FeatureConfig. Received: {value!r}.")


def tables_of(features: Mapping[str, FeatureConfig]) -> dict[str, TableConfig]:
    """Returns the tables of features by name.

    Raises:
      ValueError: if there are no features, or two different tables have the same name.
    """
    if not features:
        raise ValueError("features cannot be empty. Received: no feature.")
    tables: dict[str, TableConfig] = {}
    for feature in features.values():
        table = feature.table
        if tables.setdefault(table.name, table) != table:
            raise ValueError(
                f"Tables must have different names. Received: two tables named {table.name!r}. "
                "Rename one, or pass the same TableConfig to both features."
            )
    return tables


def bags_of(inputs: Any, weights: Any, specs: TableSpecs, mask_zero: bool) -> dict[str, Bags]:
    """Returns the bags of each feature, by name.

    Raises:
      ValueError: if the names are not those of the features, or a feature's ids and weights do not
        fit together.
    """
    _check_names(inputs, weights, specs.features)
    return {
        name: Bags(
            _tensor_of(inputs[name]), _tensor_of(weights.get(name)), feature.combiner, mask_zero
        )
        for name, feature in specs.features.items()
    }


def _check_names(inputs: Any, weights: Any, features: Mapping[str, FeatureConfig]) -> None:
    if not isinstance(inputs, Mapping) or set(inputs) != set(features):
        given = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise ValueError(
            f"The layer must be called with a dictionary of its features, {sorted(features)}. "
            f"Received: {given}."
        )
    if not isinstance(weights, Mapping) or not set(weights) <= set(features):
        raise ValueError(
            f"Weights must be a dictionary with some of the features {sorted(features)}. Received: "
            f"{sorted(weights) if isinstance(weights, Mapping) else weights!r}."
        )


def check_output_dim_or_features(output_dim: Any, features: Any) -> None:
    """Raises ValueError unless exactly one of `output_dim` and `features` is given."""
    if (output_dim is None) == (features is None):
        which = "neither" if features is None else "both"
        raise ValueError(
            f"Exactly one of output_dim and features must be given. Received: {which}."
        )


def check_no_table_settings(settings: Mapping[str, Any], initializer: Any) -> None:
    """Raises ValueError if arguments of a single table are combined with features."""
    named = [name for name, value in settings.items() if value is not None]
    if named or initializer != "uniform":
        raise ValueError(
            "With features, the settings of a table must be in its TableConfig, and the combiner "
            f"in the FeatureConfig. Received: {', '.join(named) or 'embeddings_initializer'} as an "
            "argument of the layer. Move it there."
        )


def check_settings(combiner: Any, unseen: Any, seed: Any) -> None:
    """Raises ValueError if a setting of a layer is invalid."""
    if combiner not in COMBINERS:
        raise ValueError(
            f"combiner must be one of {', '.join(map(repr, COMBINERS))}. Received: {combiner!r}."
        )
    if unseen not in UNSEEN:
        raise ValueError(
            f"unseen must be one of {', '.join(map(repr, UNSEEN))}. Received: {unseen!r}."
        )
    check_whole_number("seed", seed)


def check_optimizer(table: TableConfig, dtype: str) -> None:
    """Raises ValueError if a table's own optimizer does not support a layer's compute dtype."""
    if dtype == "float16":
        raise ValueError(
            "A table's own optimizer cannot be used with float16, because it runs within the "
            f"backward pass, where the loss is scaled. Received: optimizer={table.optimizer!r} "
            "with float16. Use mixed_bfloat16 or float32, or the model's optimizer."
        )


def check_symbolic_inputs(inputs: Any, api: str) -> None:
    """Checks that no input is a placeholder of the other Keras.

    Args:
      inputs: the arguments of a call of the layer.
      api: "keras" or "tf_keras", whose layer it is.

    Raises:
      TypeError: if an input is.
    """
    for each in tf.nest.flatten(inputs):
        kind = type(each)
        other = kind.__module__.partition(".")[0]
        if kind.__name__.endswith("KerasTensor") and other != api:
            raise TypeError(
                f"The layer and its inputs must be of the same Keras. Received: a layer of {api}, "
                f"and an input of {other}. Use strategies.embedding.{other}_layer."
                "DistributedEmbedding."
            )


def is_training(training: Any) -> bool | None:
    """Returns the `training` argument of a call as a bool; None stays None.

    Raises:
      ValueError: if it is a symbolic tensor.
    """
    if training is None:
        return None
    if tf.is_tensor(training) and not hasattr(training, "numpy"):
        raise ValueError(
            "training must be True, False or None while a function is traced. Received: "
            f"{training!r}. Pass a Python value: the function is traced once for each."
        )
    return bool(training)


def mask_of(ids: Any, feature: FeatureConfig, not_equal: Callable[..., Any]) -> Any:
    """Returns the mask of a feature's ids; None with a combiner or if the ids are not dense.

    Args:
      ids: tensor, or symbolic tensor of Keras.
      feature: configuration of the feature.
      not_equal: function that compares either kind of tensor with a number.
    """
    is_dense = not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor))
    if feature.combiner is not None or not is_dense or _is_placeholder_of_bags(ids):
        return None
    return not_equal(ids, 0)


def _is_placeholder_of_bags(ids: Any) -> bool:
    """Returns whether `ids` is a symbolic ragged or sparse tensor of Keras 3 or tf_keras."""
    kind = getattr(ids, "type_spec", None)
    if isinstance(kind, (tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        return True
    return bool(getattr(ids, "ragged", False) or getattr(ids, "sparse", False))


def shape_of(ids: Any, feature: FeatureConfig) -> tuple[Any, ...]:
    """Returns the shape of a feature's output for the shape of dense ids.

    >>> feature = FeatureConfig(TableConfig("users", 16), "sum")
    >>> shape_of((None, 5), feature), shape_of((None,), feature)
    ((None, 16), (None, 16))
    """
    kept = tuple(ids)
    if feature.combiner is not None and len(kept) > 1:
        kept = kept[:-1]
    return (*kept, feature.table.output_dim)


def _tensor_of(value: Any) -> Any:
    """Converts a value to a tensor of any kind; None stays None."""
    if value is None or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    return tf.convert_to_tensor(value)
