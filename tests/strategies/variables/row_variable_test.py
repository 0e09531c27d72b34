"""Gradients of an embedding and the rows that they are applied to."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies.embedding.tf_keras_layer import DistributedEmbedding as TfKerasEmbedding

pytestmark = pytest.mark.training

APIS = pytest.mark.parametrize(
    ("api", "embedding"),
    [(keras, strategies.DistributedEmbedding), (tf_keras, TfKerasEmbedding)],
    ids=["keras", "tf_keras"],
)
OPTIMIZERS = pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
REFUSED = "applied before the next one is computed"


def layer_of(embedding):
    layer = embedding(2, embeddings_initializer="zeros")
    layer.build()
    return layer


def gradient_of(layer, ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.cast(ids, tf.int64), training=True))
    return tape.gradient(loss, layer.trainable_variables)


def apply(optimizer, gradients, layer):
    optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))


def as_is(gradients):
    return gradients


def dense(gradients):
    return [tf.convert_to_tensor(each) for each in gradients]


@pytest.mark.each_value
@APIS
@OPTIMIZERS
@pytest.mark.parametrize("change", [as_is, dense])
@pytest.mark.parametrize("ids", [[1, 2], [1], [1, 2, 5], [1, 2, 5, 6]])
def test_a_gradient_of_rows_that_are_not_in_view_any_more_is_refused(
    api, embedding, name, change, ids
):
    layer = layer_of(embedding)
    optimizer = getattr(api.optimizers, name)(1.0)
    apply(optimizer, gradient_of(layer, [1, 2, 3, 4, 5, 6]), layer)
    before = dict(zip(*layer.rows(), strict=True))
    first, _ = change(gradient_of(layer, ids)), change(gradient_of(layer, [3, 4]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        apply(optimizer, first, layer)
    np.testing.assert_equal(dict(zip(*layer.rows(), strict=True)), before)


@pytest.mark.in_turn
@APIS
@OPTIMIZERS
@pytest.mark.parametrize("change", [as_is, dense])
def test_gradients_that_are_never_applied_change_nothing(api, embedding, name, change):
    rows = []
    for drops in (0, 3):
        layer = layer_of(embedding)
        optimizer = getattr(api.optimizers, name)(1.0)
        for ids in ([1, 2], [2], [3, 1, 4]):
            for _ in range(drops):
                gradient_of(layer, [4, 2, 1])
            apply(optimizer, change(gradient_of(layer, ids)), layer)
        rows.append(layer.rows()[1][:4])
    np.testing.assert_array_equal(*rows)


@APIS
def test_a_gradient_is_refused_however_many_came_since(api, embedding):
    layer = layer_of(embedding)
    optimizer = api.optimizers.Adam(1.0)
    held = gradient_of(layer, [1, 2])
    for ids in ([3, 4], [3], [4, 5, 6], [1, 2]):
        apply(optimizer, gradient_of(layer, ids), layer)
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        apply(optimizer, held, layer)
    gradient_of(layer, [])
    apply(optimizer, gradient_of(layer, [1, 2]), layer)


@APIS
def test_gradients_that_were_concatenated_are_refused(api, embedding):
    layer = layer_of(embedding)
    (first,), (second,) = gradient_of(layer, [1, 2]), gradient_of(layer, [3, 4, 5])
    both = tf.IndexedSlices(
        tf.concat([first.values, second.values], 0),
        tf.concat([first.indices, second.indices], 0),
        second.dense_shape,
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        apply(api.optimizers.Adam(1.0), [both], layer)


@pytest.mark.in_turn
@APIS
@OPTIMIZERS
def test_it_is_refused_within_a_function(api, embedding, name):
    layer = layer_of(embedding)
    optimizer = getattr(api.optimizers, name)(1.0)
    optimizer.build(layer.trainable_variables)

    @tf.function
    def step():
        first, second = gradient_of(layer, [1, 2]), gradient_of(layer, [3, 4])
        apply(optimizer, first, layer)
        apply(optimizer, second, layer)

    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        step()


@pytest.mark.in_turn
@APIS
def test_the_gradient_may_come_from_another_function(api, embedding):
    layer = layer_of(embedding)
    optimizer = api.optimizers.SGD(1.0)
    optimizer.build(layer.trainable_variables)
    gradient = tf.function(lambda ids: gradient_of(layer, ids)[0])
    update = tf.function(lambda each: apply(optimizer, [each], layer))
    for ids in ([1, 2], [3]):
        gradient(tf.constant(ids, tf.int64))
        update(gradient(tf.constant(ids, tf.int64)))
    np.testing.assert_array_equal(layer.rows()[1], -np.ones([3, 2]))


@pytest.mark.in_turn
@APIS
def test_replicas_of_a_worker_have_one_gradient(api, embedding):
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = layer_of(embedding)
        optimizer = api.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)

    def replica(ids):
        apply(optimizer, gradient_of(layer, ids), layer)

    def late(ids):
        first = gradient_of(layer, ids)
        gradient_of(layer, ids + 1)
        apply(optimizer, first, layer)

    def run(function):
        ids = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([context.replica_id_in_sync_group, 7], tf.int64)
        )
        tf.function(lambda ids: strategy.run(function, args=(ids,)))(ids)
        return dict(zip(layer.rows()[0].tolist(), layer.rows()[1][:, 0].tolist(), strict=True))

    assert run(replica) == {0: -1.0, 1: -1.0, 7: -2.0}
    assert run(late) == {0: -2.0, 1: -2.0, 2: 0.0, 7: -4.0, 8: 0.0}
    assert run(replica) == {0: -3.0, 1: -3.0, 2: 0.0, 7: -6.0, 8: 0.0}


@pytest.mark.parametrize("in_function", [False, True])
def test_positions_that_a_gradient_repeats_are_added_up(in_function):
    layer = layer_of(strategies.DistributedEmbedding)
    (gradient,) = gradient_of(layer, [7, 8, 9])
    (variable,) = layer.trainable_variables
    first = int(gradient.indices[0])
    repeated = tf.IndexedSlices(
        tf.constant([[1.0, 2], [4, 8], [16, 32]]), [first, first + 2, first]
    )

    def add():
        variable.value.scatter_add(repeated)
        variable.value.scatter_sub(tf.IndexedSlices([[0.5, 0.5]], [first + 1]))

    (tf.function(add) if in_function else add)()
    rows = dict(zip(*(each.tolist() for each in layer.rows()), strict=True))
    assert rows == {7: [17.0, 34.0], 8: [-0.5, -0.5], 9: [4.0, 8.0]}
