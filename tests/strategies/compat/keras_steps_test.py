"""Python generators and orders of data that building a model must not use up."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

import strategies

pytestmark = pytest.mark.training
STRATEGIES = {
    "one replica": lambda: strategies.MirroredStrategy(["CPU:0"]),
    "two replicas": lambda: strategies.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central storage": lambda: strategies.CentralStorageStrategy(["CPU:0", "CPU:1"]),
}
SIGNATURE = (tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1]))


def batch(number):
    x = np.full([4, 1], np.cos(number), "float32") + np.arange(4, dtype="float32")[:, np.newaxis]
    return x, np.sin(3 * x)


def generator():
    yield from map(batch, range(40))


def stateful():
    """Goes on where the iterator before has ended."""
    numbers = iter(range(40))
    dataset = tf.data.Dataset.from_generator(
        lambda: (batch(next(numbers)) for _ in range(4)), output_signature=SIGNATURE
    )
    return dataset.repeat()


def shuffled():
    tf.random.set_seed(1)
    x, y = map(np.concatenate, zip(*generator(), strict=True))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(160).batch(4)
    tf.random.set_seed(None)
    return dataset


def results(keras, strategy, source):
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.InputLayer([1]), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse")
    model.fit(source(), epochs=2, steps_per_epoch=4, shuffle=False, verbose=0)
    loss = model.evaluate(source(), steps=3, verbose=0)
    return [*model.get_weights(), loss, model.predict(source(), steps=3, verbose=0)]


@pytest.mark.in_turn
@pytest.mark.parametrize("source", [generator, stateful, shuffled])
@pytest.mark.parametrize("api", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
def test_replicas_train_on_the_batches_of_one_process(api, source):
    keras = importlib.import_module(api)
    expected = results(keras, tf.distribute.get_strategy(), source)
    for name, strategy in STRATEGIES.items():
        for found, value in zip(results(keras, strategy(), source), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6, err_msg=name)
