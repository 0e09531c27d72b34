"""Mode "reduce": each replica holds a part of the optimizer's state, and nothing else changes.

split_state.py keras|tf_keras [replicas a worker] [DIRECTORY, which all workers see and is empty]
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.single_worker import single_worker_scope
from strategies.variables.partition import PartitionedVariable

STEPS, ROWS, WIDTH = 10, 8, 12

api = sys.argv[1]
keras = importlib.import_module(api)
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
directory = sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp()
options = strategies.ReductionOptions(mode="reduce", split_above=WIDTH)
strategy = strategies.from_tf_config(num_replicas=replicas, options=options)
count = strategy.num_replicas_in_sync
first = strategy.extended._get_replica_id_in_sync_group(0) == 0
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


def variables_of(optimizer):
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def split(optimizer):
    held = [getattr(variable, "_value", variable) for variable in variables_of(optimizer)]
    return [variable for variable in held if isinstance(variable, PartitionedVariable)]


def same(found, expected, atol=1e-5):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=atol, rtol=1e-5)


def by_shape(variables):
    return sorted((v.numpy() for v in variables), key=lambda v: (v.shape, v.sum()))


def same_as_alone(optimizer):
    alone = fit(make(optimizer()))
    many = under(optimizer)
    print(many.optimizer.name, flush=True)
    same(many.get_weights(), alone.get_weights())
    strategies.verify_equal(strategy, many.variables)
    same(by_shape(variables_of(many.optimizer)), by_shape(variables_of(alone.optimizer)))
    return many


optimizers = keras.optimizers
# Two moments of the 12 x 7 matrix, an N-th of them here; the smaller variables are not split.
adam = same_as_alone(lambda: optimizers.Adam(0.01))
state = split(adam.optimizer)
held = sum(int(tf.size(part)) for variable in state for part in variable.parts)
parts = [len(block) * 7 for block in np.array_split(np.arange(WIDTH), count)]
rank = strategy.extended._get_replica_id_in_sync_group(0)
if count > 1:
    assert len(state) == 2
    assert held == 2 * sum(parts[rank : rank + replicas]), held
    assert all(variable.shape == (WIDTH, 7) for variable in state)

# Those that look at a whole variable gather their state, and see one process's numbers as well.
for name in ["Adafactor", "Lamb", "Muon"]:
    cls = getattr(optimizers, name, None)
    if cls is not None:
        same_as_alone(lambda cls=cls: cls(0.01))
same_as_alone(lambda: optimizers.AdamW(0.01, weight_decay=0.1))
same_as_alone(lambda: optimizers.SGD(0.01, momentum=0.9, use_ema=True, ema_overwrite_frequency=4))
if api == "keras":
    same_as_alone(lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2))

# What one strategy saves the others read, whole.
path = os.path.join(directory, "checkpoint")
with strategies.writing(path, strategy) as own:
    tf.train.Checkpoint(model=adam, optimizer=adam.optimizer).write(own)
with strategies.writing(path + ".weights.h5", strategy) as own:
    adam.save_weights(own)
with strategy.scope():
    again = make(optimizers.Adam(0.01))
alone = make(optimizers.Adam(0.01))
for model, scope in [(again, strategy.scope()), (alone, contextlib.nullcontext())]:
    with scope:
        model.optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(path).assert_consumed()
    same(
        [v.numpy() for v in variables_of(model.optimizer)],
        [v.numpy() for v in variables_of(adam.optimizer)],
        atol=0,
    )
for model in (fit(again), fit(alone), fit(adam)):
    same(model.get_weights(), adam.get_weights())
strategies.verify_equal(strategy, again.variables)

# The first worker saves what all of them hold.
whole = os.path.join(directory, "epoch{epoch}.keras")
saving = strategies.callbacks.on_first_worker(keras.callbacks.ModelCheckpoint(whole), strategy)
model = under(lambda: optimizers.Adam(0.01), callbacks=[saving])
strategies.barrier(strategy)
saved = keras.models.load_model(whole.format(epoch=1))
same(
    [v.numpy() for v in variables_of(saved.optimizer)],
    [v.numpy() for v in variables_of(model.optimizer)],
    atol=0,
)

# What would not end is refused: the other workers do not read.
if count > replicas and api == "keras" and first:
    with single_worker_scope():
        try:
            model.optimizer.variables[2].numpy()
        except RuntimeError as error:
            assert str(error).startswith("With mode='reduce' all workers read"), error
        else:
            raise AssertionError("a read by one worker was let through")
print("passed", json.dumps({"state held": held, "parts": parts}))
