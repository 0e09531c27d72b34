"""Keras's ways with weights, and optimizers and options by name, on the rows of an embedding.

embedding_weights.py keras|tf_keras none|mirrored|cluster [MODE]
"""

import contextlib
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of

api, kind = sys.argv[1:3]
if api == "keras":
    import keras

    from strategies import DistributedEmbedding
else:
    import tf_keras as keras

    from strategies.embedding.tf_keras_layer import DistributedEmbedding

strategy = {
    "none": tf.distribute.get_strategy,
    "mirrored": lambda: strategies.MirroredStrategy(["CPU:0"] * 2),
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
    ids, rows = (everyone.all_gather(tf.constant(part)).numpy() for part in layer.rows())
    return ids[np.argsort(ids)], rows[np.argsort(ids)]


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def refused(call, *parts):
    """Checks that a call is refused, and how."""
    try:
        call()
    except ValueError as error:
        for part in parts:
            assert part in str(error), f"{part!r} is not in {error}"
    else:
        raise AssertionError(f"not refused: {parts}")


def get_and_set_weights():
    model, layer = model_of()
    model.fit(IDS, Y, **FIT)
    weights, rows = model.get_weights(), rows_of(layer)
    assert len(rows[0]) == IDS.size
    model.fit(IDS + 12, Y, epochs=2, **FIT)
    after = rows_of(layer)
    assert len(after[0]) == IDS.size + 12, "no new rows"
    model.set_weights([weight.copy() for weight in weights])
    same(rows_of(layer), rows)
    same(model.get_layer("head").get_weights(), weights[1:])
    model.fit(IDS + 12, Y, **FIT)  # ids that lost their rows get new ones
    assert len(rows_of(layer)[0]) == IDS.size + 12

    with scope():
        clone = keras.models.clone_model(model)
    clone.set_weights(weights)
    same(rows_of(clone.get_layer("ids")), rows)
    if kind != "none":
        strategies.verify_equal(strategy, clone.variables)


def early_stopping():
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
    same(layer.rows(), first[0])


def files(directory):
    model, layer = model_of()
    path = strategies.own_path(directory / "best.weights.h5", strategy)
    saving = keras.callbacks.ModelCheckpoint(
        str(path), "loss", save_weights_only=True, save_best_only=True
    )
    model.fit(IDS, Y, callbacks=[saving], **FIT)
    rows = rows_of(layer)
    model.fit(IDS, Y, **FIT)
    assert not np.array_equal(rows_of(layer)[1], rows[1])
    if api == "keras" or kind != "mirrored":  # tf_keras cannot, under TensorFlow's own either
        model.load_weights(str(path))
        same(rows_of(layer), rows)
    for save in (model.save, *([model.save_weights] if api == "tf_keras" else [])):
        own = directory / f"{save.__name__}{everyone.rank}.h5"
        refused(lambda save=save, own=own: save(str(own)), "An embedding's rows are no array")
    zeros = [np.zeros_like(weight) for weight in model.get_weights()]
    refused(lambda: model.set_weights(zeros), "Received: other values for 'ids'")
    refused(lambda: pickle.dumps(model.get_weights()), "Received: an attempt to pickle it")


def optimizers():
    _, layer = model_of()
    with scope():
        refusing = {"Adafactor": {}, "SGD": {"use_ema": True}}
        if api == "keras":
            refusing |= {"Lamb": {}, "Muon": {}, "Adam": {"gradient_accumulation_steps": 2}}
        for name, options in refusing.items():
            optimizer = getattr(keras.optimizers, name)(0.01, **options)
            build = optimizer.build
            refused(lambda b=build: b(layer.trainable_variables), f"Received: {name}", *options)

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


def frozen_rows_stay():
    model, layer = model_of()
    model.fit(IDS, Y, **FIT)
    rows, head = rows_of(layer), model.get_layer("head").get_weights()
    layer.trainable = False
    with scope():
        model.compile("adam", "mse")
    model.fit(IDS + 12, Y, **FIT)
    same(rows_of(layer), rows)
    assert not np.array_equal(model.get_layer("head").get_weights()[0], head[0])
    refused(lambda: layer(np.array([[2**63]], np.uint64)), "Received: a uint64 id of 2**63")


if __name__ == "__main__":
    get_and_set_weights()
    early_stopping()
    optimizers()
    frozen_rows_stay()
    with tempfile.TemporaryDirectory() as own:
        files(Path(own))
    print("passed")
