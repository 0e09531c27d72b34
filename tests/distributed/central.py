"""CentralStorageStrategy in one process: N replicas at B rows follow one at N * B rows.

central.py keras|tf_keras
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_close, raises
from tests.support.checks import run_checks
from tests.support.keras_apis import optimizer_variables

REPLICAS, HOLDER = 3, "/job:localhost/replica:0/task:0/device:CPU:0"

keras = importlib.import_module(sys.argv[1])
layers = keras.layers
strategy = strategies.CentralStorageStrategy(num_replicas=REPLICAS)
random = np.random.default_rng(0)
x = random.normal(size=[96, 6]).astype("float32")
words = random.integers(0, 20, size=[96, 6])
y = random.integers(0, 3, size=[96])


def compiled(model, optimizer=None):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def dense():
    return compiled(
        keras.Sequential(
            [layers.InputLayer([6]), layers.Dense(8, "tanh"), layers.Dense(3, use_bias=False)]
        )
    )


def embedding():
    first = [layers.InputLayer([6], dtype="int64"), layers.Embedding(20, 4)]
    rest = [layers.GlobalAveragePooling1D(), layers.Dense(3)]
    return compiled(keras.Sequential(first + rest), keras.optimizers.SGD(0.1, momentum=0.9))


def regularized():
    """What the replicas differ in: statistics of their rows, and random numbers."""
    return compiled(
        keras.Sequential(
            [
                layers.InputLayer([6]),
                layers.Dense(8),
                layers.BatchNormalization(momentum=0.5),
                layers.Dropout(0.2),
                layers.Dense(3, dtype="float32"),
            ]
        )
    )


def is_central(variable):
    held = variable if hasattr(variable, "values") else variable.value
    return {one.device for one in held.values} == {HOLDER}


def follows_one_process(make_model, data):
    one = make_model()
    with strategy.scope():
        many = make_model()
    many.set_weights(one.get_weights())
    even = {"batch_size": 24, "epochs": 3, "shuffle": False, "verbose": 0}
    histories = [model.fit(data, y, **even).history for model in (one, many)]
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-4, err_msg=name)
    assert_all_close(many.get_weights(), one.get_weights(), atol=1e-5)
    predictions = [model.predict(data, verbose=0) for model in (many, one)]
    np.testing.assert_allclose(*predictions, atol=1e-5)
    evaluated = [model.evaluate(data, y, verbose=0) for model in (many, one)]
    np.testing.assert_allclose(*evaluated, rtol=1e-4)
    # tf_keras does not say that its count of steps is one for all replicas: each has its own.
    variables = [*many.variables, *optimizer_variables(many.optimizer)]
    apart = [v.name for v in variables if not is_central(v)]
    assert apart in ([], ["iteration:0"]), apart


def check_variables_have_one_device():
    assert strategy.num_replicas_in_sync == REPLICAS
    assert strategy.extended.parameter_devices == (HOLDER,)


def check_a_dense_model_follows_one_process():
    follows_one_process(dense, x)


def check_an_embedding_follows_one_process():
    follows_one_process(embedding, words)


def trains_on_uneven_examples(policy):
    """96 rows in batches of 25 leave 21 for the last, and 7 a replica; of one row two get none."""
    keras.mixed_precision.set_global_policy(policy)
    try:
        with strategy.scope():
            model = regularized()
        before = model.get_weights()
        losses = model.fit(x, y, batch_size=25, epochs=4, verbose=0).history["loss"]
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert np.isfinite(losses).all() and losses[-1] < losses[0], losses
    after = model.get_weights()
    changed = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    # Keras 3 counts the seeds of Dropout as weights too; the first bias has no part in the loss.
    assert sum(changed) >= 7, changed
    assert all(np.isfinite(weight).all() for weight in after)


def check_uneven_examples():
    trains_on_uneven_examples("float32")


def check_uneven_examples_in_bfloat16():
    trains_on_uneven_examples("mixed_bfloat16")


def check_uneven_examples_in_float16():
    trains_on_uneven_examples("mixed_float16")


def check_there_is_one_moving_mean_for_all():
    """The mean of the replicas' own, which are of a third of the rows each."""
    with strategy.scope():
        normalize = layers.BatchNormalization(momentum=0.0)
        normalize.build([None, 6])
    run = tf.function(lambda part: strategy.run(normalize, args=(part,), kwargs={"training": True}))
    rows = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x))
    for batch in rows:
        run(batch)
    np.testing.assert_allclose(np.asarray(normalize.moving_mean), x.mean(0), atol=1e-5)


def check_two_ways_to_name_the_devices_are_refused():
    with raises(ValueError, "Received: both"):
        strategies.CentralStorageStrategy(["CPU:0"], num_replicas=1)


if __name__ == "__main__":
    run_checks(globals())
