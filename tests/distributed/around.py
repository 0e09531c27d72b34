"""What is around training: files are written once and whole, callbacks act once, all in step.

around.py keras|tf_keras

All workers see the directory in which it is run, and it is empty.
"""

import functools
import importlib
import logging
import os
import sys
import time

import absl.logging
import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import (
    assert_all_close,
    assert_all_equal,
    assert_same_everywhere,
    raises,
)
from tests.support.checks import run_checks
from tests.support.keras_apis import optimizer_variables

keras = importlib.import_module(sys.argv[1])
directory = os.getcwd()
strategy = strategies.from_tf_config()
rank = strategy.extended._get_replica_id_in_sync_group(0)
workers = strategy.num_replicas_in_sync
first_worker = strategies.callbacks.on_first_worker
random = np.random.default_rng(0)
x = random.normal(size=[64, 4]).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")


def layers():
    return [
        keras.layers.InputLayer([4]),
        keras.layers.Dense(8),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1, "sigmoid"),
    ]


def outside(model):
    """Returns the same model under no strategy."""
    found = keras.Sequential(layers())
    found.set_weights(model.get_weights())
    return found


def make(optimizer="Adam", rate=0.01):
    with strategy.scope():
        model = keras.Sequential(layers())
        metrics = ["accuracy", keras.metrics.AUC()]
        optimizer = getattr(keras.optimizers, optimizer)(rate)
        model.compile(optimizer, "binary_crossentropy", metrics=metrics)
    return model


def fit(model, callbacks=(), **options):
    options = {"batch_size": 16, "verbose": 0, **options}
    history = model.fit(x, y, callbacks=list(callbacks), **options)
    strategies.verify_equal(strategy, model.variables)
    strategies.verify_equal(strategy, optimizer_variables(model.optimizer))
    assert_same_everywhere(strategy, history.history)
    return history.history


@functools.cache
def fitted():
    """Returns a model that was trained; checks read it alone."""
    model = make()
    fit(model, epochs=1)
    return model


def place(name):
    return os.path.join(directory, name)


def listed(name):
    strategies.barrier(strategy)
    found = sorted(os.listdir(place(name)))
    strategies.barrier(strategy)
    return found


def assert_same_weights(model, other):
    assert_all_equal(model.get_weights(), other.get_weights())


def check_a_model_is_saved_by_all_and_written_once():
    """It is there when the block is left, however slow the first one is."""
    model = fitted()
    for again in range(2):
        with strategies.writing(place("saved/model.keras"), strategy) as path:
            model.save(path)
            if rank == 0 and not again:
                time.sleep(1)
        with strategy.scope():
            loaded = keras.models.load_model(place("saved/model.keras"))
        assert_same_weights(model, loaded)
        assert listed("saved") == ["model.keras"]
    fit(loaded, epochs=1)


def check_weights_are_written_once():
    model = fitted()
    with strategies.writing(place("weights/model.weights.h5"), strategy) as path:
        model.save_weights(path)
    fresh = make()
    fresh.load_weights(place("weights/model.weights.h5"))
    assert_same_weights(model, fresh)
    assert listed("weights") == ["model.weights.h5"]


def check_what_is_exported_serves_what_the_model_gives():
    model = fitted()
    with strategies.writing(place("exported"), strategy) as path:
        tf.saved_model.save(model, path)
    tf.saved_model.load(place("exported"))
    with strategies.writing(place("exported"), strategy) as path:  # a directory over a directory
        model.export(path)
    served = tf.saved_model.load(place("exported"))
    # (tf_keras's replicas predict with moving means of their own.)
    np.testing.assert_allclose(served.serve(x), outside(model)(x), rtol=1e-5)


def check_a_checkpoint_is_written_once():
    model = fitted()
    with strategies.writing(place("once/checkpoint-1"), strategy) as path:
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
    fresh = make()
    tf.train.Checkpoint(model=fresh).read(place("once/checkpoint-1")).expect_partial()
    assert_same_weights(model, fresh)
    assert len(listed("once")) == 2


def check_a_checkpoint_manager_keeps_what_it_is_told():
    model = fitted()
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(
        checkpoint, strategies.own_path(place("managed"), strategy), max_to_keep=2
    )
    for _ in range(3):
        manager.save()
    strategies.barrier(strategy)
    assert tf.train.latest_checkpoint(place("managed")).endswith("ckpt-3")
    assert len(listed("managed")) == 5
    fresh = make()
    checkpoint = tf.train.Checkpoint(model=fresh)
    checkpoint.restore(tf.train.latest_checkpoint(place("managed"))).expect_partial()
    assert_same_weights(model, fresh)


def check_a_worker_that_cannot_write_does_not_leave_the_others_waiting():
    if rank == 0:
        open(place("file"), "w").close()
    kind = (OSError, tf.errors.OpError) if rank == 0 else RuntimeError
    with raises(kind, "" if rank == 0 else "an error on worker 0. See that worker's output"):
        with strategies.writing(place("file/model.keras"), strategy):
            raise AssertionError("a file is no directory")


def check_callbacks_act_once_and_training_is_the_same_on_all_workers():
    stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0)
    slower = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5)
    speed = strategies.callbacks.Throughput(len(x))
    once = [
        keras.callbacks.ModelCheckpoint(place("kept/{epoch}.keras")),
        keras.callbacks.ModelCheckpoint(place("best/best.keras"), "loss", save_best_only=True),
        keras.callbacks.ModelCheckpoint(place("only/w.weights.h5"), save_weights_only=True),
        keras.callbacks.CSVLogger(place("log.csv")),
        keras.callbacks.BackupAndRestore(place("backup")),
    ]
    model = make()
    history = fit(
        model,
        [speed, stopping, slower, *(first_worker(callback, strategy) for callback in once)],
        epochs=5,
        validation_data=(x, y),
    )
    assert len(history["loss"]) == 2, history
    assert np.isclose(float(model.optimizer.learning_rate.numpy()), 0.005)
    assert all(speed > 0 for speed in history["samples_per_second"])
    assert listed("kept") == ["1.keras", "2.keras"]
    assert listed("best") == ["best.keras"]
    assert listed("only") == ["w.weights.h5"]
    with open(place("log.csv")) as file:
        assert len(file.readlines()) == 3
    if os.path.isdir(place("backup")):  # tf_keras leaves the empty directory
        assert os.listdir(place("backup")) == []
    with strategy.scope():
        last = keras.models.load_model(place("kept/2.keras"))
    assert_same_weights(model, last)


def check_tensorboard_has_each_epoch_once_and_keeps_workers_in_step():
    """There is one set of event files, with what is written of weights and of steps."""
    board = keras.callbacks.TensorBoard(place("board"), histogram_freq=1, update_freq=2)
    model = make()
    fit(model, [first_worker(board, strategy)], epochs=3, validation_data=(x, y))
    for part, epochs in (("train", [0, 1, 2]), ("validation", [0, 1, 2])):
        (name,) = (name for name in listed(f"board/{part}") if "tfevents" in name)
        events = tf.compat.v1.train.summary_iterator(place(f"board/{part}/{name}"))
        values = [(value.tag, event.step) for event in events for value in event.summary.value]
        assert [step for tag, step in values if tag == "epoch_loss"] == epochs, values
        kernels = {tag for tag, _ in values if "kernel" in tag}
        assert bool(kernels) == (part == "train"), values


def check_interrupted_training_ends_where_the_whole_one_ends():
    whole = make()
    start = whole.get_weights()
    fit(whole, epochs=4, shuffle=False)

    class Interruption(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    def backup():
        return first_worker(keras.callbacks.BackupAndRestore(place("again")), strategy)

    model = make()
    model.set_weights(start)
    with raises(InterruptedError):
        fit(model, [backup(), Interruption()], epochs=4, shuffle=False)
    model = make()
    history = fit(model, [backup()], epochs=4, shuffle=False)
    assert len(history["loss"]) == 2, history
    assert_all_close(model.get_weights(), whole.get_weights(), rtol=1e-5, atol=1e-6)


def check_the_learning_rate_rises_step_by_step_to_that_of_all_replicas():
    rates = []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    model = make("SGD", 0.1)
    warmup = strategies.callbacks.LearningRateWarmup(epochs=1.5)
    fit(model, [warmup, Rates()], epochs=2)
    expected = [0.1 * (1 + (workers - 1) * min(step / 6, 1)) for step in range(8)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def check_training_ends_on_all_workers_at_one_workers_gradient_that_is_no_number():
    class Messages(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    batches, messages, handler = [], [], Messages()
    wrong = y.copy()
    wrong[20] = np.nan  # of the second batch of 16 rows, the second worker's if there are two
    counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: batches.append(b))
    absl.logging.get_absl_logger().addHandler(handler)
    try:
        data = tf.data.Dataset.from_tensor_slices((x, wrong)).batch(16)
        model = make("SGD")
        callbacks = [strategies.callbacks.TerminateOnNaN(), counter]
        model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    finally:
        absl.logging.get_absl_logger().removeHandler(handler)
    assert batches == [0, 1]
    culprit = 4 * workers // 16
    # On a busy machine, the first worker's report of who is waited for may come before it.
    (message,) = [each for each in messages if each.startswith("Training ends")]
    assert f"at batch 1: gradients that are NaN or infinite on worker {culprit} in" in message


if __name__ == "__main__":
    run_checks(globals())
