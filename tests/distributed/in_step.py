"""200 steps with Dropout and BatchNormalization: all replicas are equal to the bit, and each draws
random numbers of its own.

in_step.py keras|tf_keras [replicas a worker]
"""

import functools
import importlib
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

import strategies
from tests.support.checks import run_checks
from tests.support.keras_apis import optimizer_variables

STEPS, EPOCHS, ROWS, WIDTH, CLASSES = 200, 4, 4, 8, 3

keras = importlib.import_module(sys.argv[1])
keras.utils.set_random_seed(0)  # of weights with which it learns in so few steps
strategy = strategies.from_tf_config(num_replicas=int(sys.argv[2]) if len(sys.argv) > 2 else 1)
n = strategy.num_replicas_in_sync
is_keras_3 = keras.__name__ == "keras"
random = np.random.default_rng(0)
x = random.normal(size=[STEPS // EPOCHS * ROWS * n, WIDTH]).astype("float32")
y = (x @ random.normal(size=[WIDTH, CLASSES])).argmax(1)


def make(rate):
    with strategy.scope():
        layers = [keras.layers.InputLayer([WIDTH])]
        for _ in range(2):
            layers += [
                keras.layers.Dense(16),
                keras.layers.BatchNormalization(momentum=0.9),
                keras.layers.Activation("relu"),
                keras.layers.Dropout(rate),
                keras.layers.GaussianNoise(0.01),
            ]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


@functools.cache
def trained():
    """Returns a model after 200 steps, its weights before them, and the history."""
    model = make(0.3)
    before = model.get_weights()
    fitted = model.fit(x, y, batch_size=ROWS * n, epochs=EPOCHS, verbose=0)
    return model, before, fitted.history


def check_after_200_steps_all_replicas_are_equal():
    model, before, history = trained()
    assert int(np.asarray(model.optimizer.iterations)) == STEPS
    assert history["accuracy"][-1] > 0.6, history
    for variables in (model.variables, optimizer_variables(model.optimizer)):
        strategies.verify_equal(strategy, variables)
    for one, other in zip(before, model.get_weights(), strict=True):
        assert np.isfinite(other).all() and not np.array_equal(one, other)


def check_seeds_count_the_steps():
    model, *_ = trained()
    seeds = [v for v in model.variables if v.name.startswith("seed_generator_state")]
    assert len(seeds) == (4 if is_keras_3 else 0)
    for seed in seeds:
        assert seed.numpy()[1] == STEPS, seed


def dropped(layer, inside=False):
    """Returns what each replica of each worker drops: [step, replica, unit]."""

    def replica():
        return layer(tf.ones([1, 64]), training=True)

    def step(each):
        return strategy.run(each)

    each = tf.function(replica) if inside else replica
    step = step if inside else tf.function(step)
    return np.stack([strategy.gather(step(each), axis=0).numpy() == 0 for _ in range(4)])


def one_of(rate):
    with strategy.scope():
        return keras.layers.Dropout(rate)


def all_differ(inside):
    masks = dropped(one_of(0.5), inside).reshape([4 * n, 64])
    agreement = (masks[:, None] == masks[None]).mean(axis=2)
    np.fill_diagonal(agreement, 0.5)
    assert agreement.min() > 0.1 and agreement.max() < 0.9, "replicas or steps drop the same units"
    assert 0.3 < masks.mean() < 0.7


def check_each_replica_drops_units_of_its_own_in_every_step():
    all_differ(inside=False)


def check_each_replica_that_is_a_function_drops_units_of_its_own():
    all_differ(inside=True)


def check_restored_replicas_draw_the_same_numbers_again():
    """The state is of all replicas. (It is named by itself, for Keras 3's layers leave it out of
    tf.train.Checkpoint.)"""
    if not is_keras_3:
        return
    layer = one_of(0.5)
    state = layer.seed_generator.state
    checkpoint = tf.train.Checkpoint(state=state.value)
    with tempfile.TemporaryDirectory() as directory:
        path = checkpoint.write(os.path.join(directory, "mine"))
        first = dropped(layer)
        assert state.numpy()[1] == 4
        checkpoint.read(path).assert_existing_objects_matched()
    assert state.numpy()[1] == 0
    np.testing.assert_array_equal(dropped(layer), first)
    strategies.verify_equal(strategy, [state])


def check_the_first_replicas_numbers_are_those_of_one_process():
    if not is_keras_3:
        return
    layer = one_of(0.5)
    first = dropped(layer)
    alone = keras.layers.Dropout(0.5)
    alone.seed_generator.state.assign([layer.seed_generator.state.numpy()[0], 0])
    np.testing.assert_array_equal(alone(tf.ones([1, 64]), training=True).numpy() == 0, first[0, :1])


def check_replicas_of_a_model_that_is_loaded_draw_their_own_numbers():
    if not is_keras_3:
        return
    model, *_ = trained()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.keras")
        model.save(path)
        with strategy.scope():
            loaded = keras.models.load_model(path)
    loaded.fit(x, y, batch_size=ROWS * n, verbose=0)
    strategies.verify_equal(strategy, loaded.variables)
    copies = [layer for layer in loaded.layers if isinstance(layer, keras.layers.Dropout)]
    masks = dropped(copies[0])[0]
    assert len({mask.tobytes() for mask in masks}) == n, "replicas drop the same units"


if __name__ == "__main__":
    run_checks(globals())
