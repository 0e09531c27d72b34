"""The L2 penalty on the rows that a step trains, in closed form and beside a stock layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_close
from tests.support.embeddings import all_rows, embedding_of
from tests.support.steps import scope_of

L2 = 0.25
# Every batch of four has every id, so that the rows of a step are all rows.
IDS = np.array([[0, 1], [2, 0], [0, 3], [1, 1]] * 2)
Y = np.arange(8, dtype="float32")[:, None]


def check_each_row_once(
    keras: Any, strategy: tf.distribute.Strategy, rank: int, in_step: bool, **options: Any
) -> None:
    """A row of several replicas is penalized once in a step, and one that is left out never.

    Workers that do not take steps together penalize their rows each; here these are different.
    """
    with strategy.scope():
        layer = embedding_of(keras.__name__)(
            2, embeddings_initializer="ones", l2=L2, name="penalized", **options
        )
        layer.build()
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)
    layer.set_rows(np.array([7]), np.ones([1, 2], np.float32))
    replicas = strategy.num_replicas_in_sync
    base = 0 if in_step else 100 * rank

    def replica(ids: tf.Tensor) -> tf.Tensor:
        own = tf.distribute.get_replica_context().replica_id_in_sync_group
        ids = base + tf.stack([ids, ids, 10 + tf.cast(own, tf.int64)])
        with tf.GradientTape() as tape:
            values = layer(ids, training=True)
            loss = tf.add_n(layer.losses) / replicas + 0.0 * tf.reduce_sum(values)
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return loss

    @tf.function
    def run(ids: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(replica, args=(ids,)), axis=None)

    loss = float(run(tf.constant(5, tf.int64)))
    assert loss == L2 * 2 * (1 + replicas), loss
    strategies.barrier(strategy)
    ids, rows = all_rows(strategy, layer)
    found = dict(zip(ids.tolist(), rows[:, 0].tolist(), strict=True))
    assert found.pop(7) == 1.0, found
    assert set(found.values()) == {1.0 - 2 * L2}, found


def check_like_a_regularizer(
    keras: Any, strategy: tf.distribute.Strategy | None, **options: Any
) -> None:
    """Weights and logged losses are those of a stock layer whose whole table is penalized."""

    alone = tf.distribute.get_strategy()

    def train(strategy: tf.distribute.Strategy | None, layer: Any) -> list[np.ndarray]:
        with scope_of(strategy):
            made = layer()
            last = keras.layers.Dense(1, kernel_initializer="ones")
            layers = [keras.layers.InputLayer([2], dtype="int64"), made, keras.layers.Flatten()]
            model = keras.Sequential([*layers, last])
            model.compile(keras.optimizers.Adam(0.1), "mse")
        history = model.fit(IDS, Y, batch_size=4, epochs=3, shuffle=False, verbose=0).history
        is_stock = isinstance(made, keras.layers.Embedding)
        rows = made.embeddings.numpy() if is_stock else all_rows(strategy or alone, made)[1]
        return [np.asarray(history["loss"]), rows, last.kernel.numpy()]

    ones = {"embeddings_initializer": "ones"}
    expected = train(
        None,
        lambda: keras.layers.Embedding(
            4, 3, embeddings_regularizer=keras.regularizers.L2(L2), **ones
        ),
    )
    of_package = embedding_of(keras.__name__)
    found = train(strategy, lambda: of_package(3, 4, l2=L2, **ones, **options))
    assert_all_close(found, expected, rtol=1e-4, atol=1e-5)
