"""verify_equal: what counts as a value of a variable; several workers: tests/distributed."""

import keras
import pytest
import tensorflow as tf
import tf_keras

import strategies
from tests.support.embeddings import embedding_of

REPLICAS = ["CPU:0", "CPU:1"]


@pytest.mark.parametrize("api", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_table_counts_whatever_its_ids_are(api):
    """Its rows differ between workers, so that it has no value that could be read."""
    strategy = strategies.MirroredStrategy(REPLICAS)
    with strategy.scope():
        layer = embedding_of(api.__name__)(2)
        dense = api.layers.Dense(1)
        dense.build([None, 2])
    layer(tf.constant([7, 2**40]), training=True)
    digest = strategies.verify_equal(strategy, [*layer.variables, *dense.variables])
    assert digest != strategies.verify_equal(strategy, dense.variables)


@pytest.mark.parametrize("api", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_replicas_with_different_values_are_found(api):
    strategy = strategies.MirroredStrategy(REPLICAS)
    with strategy.scope():
        dense = api.layers.Dense(1)
        dense.build([None, 2])
    bias = dense.bias
    second = getattr(bias, "_value", bias).values[1]
    second.assign_add([1.0])
    with pytest.raises(RuntimeError, match="in 1 of 2 variables, the first of them at index 1"):
        strategies.verify_equal(strategy, dense.variables)


def test_a_model_in_place_of_its_variables_is_refused():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    with pytest.raises(TypeError, match="Received: Sequential. Pass model.variables, for example"):
        strategies.verify_equal(tf.distribute.get_strategy(), model)
