"""Keras's ways with weights, and optimizers and options by name, on the rows of an embedding.

embedding_weights.py keras|tf_keras none|mirrored|cluster [MODE]
"""

import contextlib
import importlib
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from tests.support.assertions import assert_all_equal, raises
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows, embedding_of
from tests.support.workers import shared_directory

api, kind = sys.argv[1:3]
keras, DistributedEmbedding = importlib.import_module(api), embedding_of(api)
strategy = {
    "none": tf.distribute.get_strategy,
    "mirrored": lambda: strategies.MirroredStrategy(num_replicas=2),
    "cluster": lambda: strategies.from_tf_config(mode=sys.argv[3]),
}[kind]()
scope = contextlib.nullcontext if kind == "none" else strategy.scope
everyone = collectives_of(strategy)
IDS = np.arange(24).reshape([12, 2]) - 12
Y = np.random.default_rng(0).normal(size=[12, 1]).astype("float32")
FIT = {"batch_size": 4, "shuffle": False, "verbose": 0}


def model_of(optimizer="adam", **options):
    with scope():
        layer = DistributedEmbedding(3, combiner="sum", name="ids", **options)
        inputs = keras.Input([2], dtype="int64")
        model = keras.Model(inputs, keras.layers.Dense(1, name="head")(layer(inputs)))
        model.compile(optimizer, "mse")
    return model, layer


def rows_of(layer):
    """Returns the ids and rows of all workers, when none of them trains."""
    if kind == "cluster":
        strategies.barrier(strategy)
    return all_rows(strategy, layer)


def check_weights_are_taken_and_set():
    model, layer = model_of()
    model.fit(IDS, Y, **FIT)
    weights, rows = model.get_weights(), rows_of(layer)
    assert len(rows[0]) == IDS.size
    model.fit(IDS + 12, Y, epochs=2, **FIT)
    after = rows_of(layer)
    assert len(after[0]) == IDS.size + 12, "no new rows"
    model.set_weights([weight.copy() for weight in weights])
    assert_all_equal(rows_of(layer), rows)
    assert_all_equal(model.get_layer("head").get_weights(), weights[1:])
    model.fit(IDS + 12, Y, **FIT)  # ids that lost their rows get new ones
    assert len(rows_of(layer)[0]) == IDS.size + 12


def check_a_clone_takes_the_weights():
    model, layer = model_of()
    model.fit(IDS, Y, **FIT)
    weights, rows = model.get_weights(), rows_of(layer)
    model.fit(IDS + 12, Y, **FIT)
    with scope():
        clone = keras.models.clone_model(model)
    clone.set_weights(weights)
    assert_all_equal(rows_of(clone.get_layer("ids")), rows)
    if kind != "none":
        strategies.verify_equal(strategy, clone.variables)


def check_early_stopping_restores_the_best_weights():
    """The loss falls, so that the first of two epochs is the best one of the largest loss."""
    model, layer = model_of("sgd")
    first = []
    noted = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: first.append(layer.rows()))
    stopping = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=1, restore_best_weights=True
    )
    history = model.fit(IDS, Y, epochs=5, callbacks=[noted, stopping], **FIT).history
    assert len(history["loss"]) == 2, history
    assert not np.array_equal(first[0][1], first[1][1])
    assert_all_equal(layer.rows(), first[0])


def state_of(layer):
    """Returns what an optimizer has for each id, in the order of the ids."""
    arrays = layer.snapshot_rows()
    order = np.argsort(arrays["0/ids"])
    return {
        name.partition("/slot/")[2]: rows[order]
        for name, rows in arrays.items()
        if "/slot/" in name
    }


def check_only_the_present_optimizers_state_is_saved():
    """A restore would give the next optimizer that of the one before another `compile`."""
    model, layer = model_of()
    model.fit(IDS, Y, epochs=3, **FIT)
    with scope():
        model.compile("adam", "mse")
    model.fit(IDS, Y, **FIT)
    first, second = ("momentum", "velocity") if api == "keras" else ("m", "v")
    present = state_of(layer)
    assert set(present) == {first, second}, list(present)
    # Each id came once: Adam has 0.1 of its gradient, and 0.001 of the square.
    np.testing.assert_allclose(present[first] ** 2, 10 * present[second], rtol=1e-3, atol=1e-12)
    directory = str(shared_directory(strategy))
    layer.save_rows(directory)
    again, restored = model_of()
    restored.load_rows(directory)
    with scope():
        again.optimizer.build(again.trainable_variables)
    for name, rows in state_of(restored).items():
        np.testing.assert_array_equal(rows, present[name])


def check_what_is_restored_is_the_next_optimizers_and_not_a_former_ones():
    model, layer = model_of()
    model.fit(IDS, Y, **FIT)
    directory = str(shared_directory(strategy))
    layer.save_rows(directory)
    saved = state_of(layer)
    with scope():
        model.compile("adam", "mse")
    layer.load_rows(directory)
    with scope():
        model.optimizer.build(model.trainable_variables)
    for name, rows in state_of(layer).items():
        np.testing.assert_array_equal(rows, saved[name])


def check_optimizers_that_are_refused_are_named():
    _, layer = model_of()
    refusing = {"Adafactor": {}, "SGD": {"use_ema": True}}
    if api == "keras":
        refusing |= {"Lamb": {}, "Muon": {}, "Adam": {"gradient_accumulation_steps": 2}}
    with scope():
        for name, options in refusing.items():
            optimizer = getattr(keras.optimizers, name)(0.01, **options)
            with raises(ValueError, f"Received: {name}", *options):
                optimizer.build(layer.trainable_variables)


def check_centered_rmsprop():
    with scope():
        rows = DistributedEmbedding(1, combiner="sum", embeddings_initializer="zeros")
        inputs = keras.Input([1], dtype="int64")
        model = keras.Model(inputs, rows(inputs))
        model.compile(keras.optimizers.RMSprop(0.1, centered=True), "mse")
    model.fit(np.full([12, 1], 2**40), np.ones([12, 1]), **FIT)
    mean = square = row = 0.0
    for _ in range(3):
        gradient = 2 * (row - 1)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.9 * square + 0.1 * gradient**2
        row -= 0.1 * gradient / np.sqrt(square - mean**2 + 1e-7)
    found = rows_of(rows)[1]
    # Without steps in turn a gradient may be that of an earlier row.
    if "async" not in sys.argv:
        np.testing.assert_allclose(found, [[row]], rtol=1e-5)


def check_frozen_rows_stay():
    model, layer = model_of()
    model.fit(IDS, Y, **FIT)
    rows, head = rows_of(layer), model.get_layer("head").get_weights()
    layer.trainable = False
    with scope():
        model.compile("adam", "mse")
    model.fit(IDS + 12, Y, **FIT)
    assert_all_equal(rows_of(layer), rows)
    assert not np.array_equal(model.get_layer("head").get_weights()[0], head[0])


def check_an_id_above_int64_is_refused():
    _, layer = model_of()
    with raises(ValueError, "Received: a uint64 id of 2**63"):
        layer(np.array([[2**63]], np.uint64))


def check_weights_are_saved_by_a_callback_and_loaded():
    model, layer = model_of()
    with tempfile.TemporaryDirectory() as directory:
        path = strategies.own_path(Path(directory) / "best.weights.h5", strategy)
        saving = keras.callbacks.ModelCheckpoint(
            str(path), "loss", save_weights_only=True, save_best_only=True
        )
        model.fit(IDS, Y, callbacks=[saving], **FIT)
        rows = rows_of(layer)
        model.fit(IDS, Y, **FIT)
        assert not np.array_equal(rows_of(layer)[1], rows[1])
        # tf_keras cannot where replicas are summed, under TensorFlow's own either.
        if api == "keras" or kind == "none":
            model.load_weights(str(path))
            assert_all_equal(rows_of(layer), rows)


def check_files_of_arrays_are_refused():
    model, _ = model_of()
    model.fit(IDS, Y, **FIT)
    with tempfile.TemporaryDirectory() as directory:
        for save in (model.save, *([model.save_weights] if api == "tf_keras" else [])):
            own = Path(directory) / f"{save.__name__}{everyone.rank}.h5"
            with raises(ValueError, "An embedding's rows cannot be converted to an array"):
                save(str(own))


def check_other_values_than_its_own_are_refused():
    model, _ = model_of()
    model.fit(IDS, Y, **FIT)
    zeros = [np.zeros_like(weight) for weight in model.get_weights()]
    with raises(ValueError, "Received: other values for 'ids'"):
        model.set_weights(zeros)
    with raises(ValueError, "Received: an attempt to pickle it"):
        pickle.dumps(model.get_weights())


if __name__ == "__main__":
    run_checks(globals())
