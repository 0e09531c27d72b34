"""Mode "reduce": each replica holds a part of the optimizer's state, and nothing else changes.

split_state.py keras|tf_keras [replicas a worker]

All workers see the directory in which it is run, and it is empty.
"""

import contextlib
import importlib
import os
import sys

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.single_worker import single_worker_scope
from strategies.variables.partitioned import PartitionedVariable
from tests.support.assertions import assert_all_close, raises
from tests.support.checks import run_checks
from tests.support.keras_apis import optimizer_variables
from tests.support.reference import of_one_process

STEPS, ROWS, WIDTH = 10, 8, 12

api = sys.argv[1]
keras = importlib.import_module(api)
optimizers = keras.optimizers
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
directory = os.getcwd()
options = strategies.ReductionOptions(mode="reduce", split_above=WIDTH)
strategy = strategies.from_tf_config(num_replicas=replicas, options=options)
count = strategy.num_replicas_in_sync
rank = strategy.extended._get_replica_id_in_sync_group(0)
random = np.random.default_rng(0)
x = random.normal(size=[STEPS * ROWS * count, WIDTH]).astype("float32")
y = x[:, :3].sum(axis=1, keepdims=True)
start = [random.normal(size=shape).astype("float32") for shape in [(WIDTH, 7), (7,), (7, 1), (1,)]]


def make(optimizer):
    layers = [
        keras.layers.InputLayer([WIDTH]),
        keras.layers.Dense(7, "tanh"),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse")
    model.set_weights(start)
    return model


def fit(model, **more):
    model.fit(x, y, batch_size=ROWS * count, shuffle=False, verbose=0, **more)
    return model


def under(optimizer, **more):
    with strategy.scope():
        return fit(make(optimizer()), **more)


def split(optimizer):
    held = [getattr(variable, "_value", variable) for variable in optimizer_variables(optimizer)]
    return [variable for variable in held if isinstance(variable, PartitionedVariable)]


def same(found, expected, atol=1e-5):
    assert_all_close(found, expected, atol=atol, rtol=1e-5)


def values(optimizer):
    return [variable.numpy() for variable in optimizer_variables(optimizer)]


def by_shape(values):
    return sorted(values, key=lambda value: (value.shape, value.sum()))


def same_as_alone(make_optimizer):

    def train_alone():
        alone = fit(make(make_optimizer()))
        return alone.get_weights(), by_shape(values(alone.optimizer))

    weights, state = of_one_process(train_alone)
    many = under(make_optimizer)
    same(many.get_weights(), weights)
    strategies.verify_equal(strategy, many.variables)
    same(by_shape(values(many.optimizer)), state)
    return many


def adam():
    return optimizers.Adam(0.01)


def check_adam_holds_an_nth_of_its_moments():
    """Of both moments of the 12 x 7 matrix; the smaller variables are not split."""
    model = same_as_alone(adam)
    state = split(model.optimizer)
    held = sum(int(tf.size(part)) for variable in state for part in variable.parts)
    parts = [len(block) * 7 for block in np.array_split(np.arange(WIDTH), count)]
    if count > 1:
        assert len(state) == 2
        assert held == 2 * sum(parts[rank : rank + replicas]), held
        assert all(variable.shape == (WIDTH, 7) for variable in state)


def check_optimizers_that_look_at_a_whole_variable_gather_their_state():
    """They see one process's numbers as well."""
    for name in ["Adafactor", "Lamb", "Muon"]:
        cls = getattr(optimizers, name, None)
        if cls is not None:
            same_as_alone(lambda cls=cls: cls(0.01))


def check_weight_decay():
    same_as_alone(lambda: optimizers.AdamW(0.01, weight_decay=0.1))


def check_averages_that_overwrite():
    average = {"use_ema": True, "ema_overwrite_frequency": 4}
    same_as_alone(lambda: optimizers.SGD(0.01, momentum=0.9, **average))


def check_gradient_accumulation():
    if api == "keras":
        same_as_alone(lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2))


def check_what_one_strategy_saves_the_others_read_whole():
    model = under(adam)
    path = os.path.join(directory, "checkpoint")
    with strategies.writing(path, strategy) as own:
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(own)
    with strategies.writing(path + ".weights.h5", strategy) as own:
        model.save_weights(own)
    with strategy.scope():
        again = make(adam())
    alone = make(adam())
    for other, scope in [(again, strategy.scope()), (alone, contextlib.nullcontext())]:
        with scope:
            other.optimizer.build(other.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
        checkpoint.read(path).assert_consumed()
        same(values(other.optimizer), values(model.optimizer), atol=0)
    for other in (fit(again), fit(alone), fit(model)):
        same(other.get_weights(), model.get_weights())
    strategies.verify_equal(strategy, again.variables)


def check_the_first_worker_saves_what_all_of_them_hold():
    whole = os.path.join(directory, "epoch{epoch}.keras")
    saving = strategies.callbacks.on_first_worker(keras.callbacks.ModelCheckpoint(whole), strategy)
    model = under(adam, callbacks=[saving])
    strategies.barrier(strategy)
    saved = keras.models.load_model(whole.format(epoch=1))
    same(values(saved.optimizer), values(model.optimizer), atol=0)


def check_a_read_by_one_worker_that_would_not_end_is_refused():
    """The other workers do not read."""
    model = under(adam)
    if count > replicas and api == "keras" and rank == 0:
        message = "With mode='reduce' all workers must read"
        with single_worker_scope(), raises(RuntimeError, message):
            model.optimizer.variables[2].numpy()


if __name__ == "__main__":
    run_checks(globals())
