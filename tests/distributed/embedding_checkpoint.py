"""Rows, slot variables, counts and times, saved by some workers and restored by others.

embedding_checkpoint.py DIRECTORY [keras|tf_keras] [rows|weights|checkpoint]
What the run before saved is restored in every way or the one that is named, compared to the bit,
trained on, and saved.
"""

import importlib
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies
from tests.support.embeddings import embedding_of

directory = Path(sys.argv[1])
api = sys.argv[2] if len(sys.argv) > 2 else "keras"
ways = sys.argv[3:] or ["rows", "weights", "checkpoint"]
keras = importlib.import_module(api)
strategy = strategies.from_tf_config(mode="sync")
users = strategies.TableConfig(
    "users", 3, embeddings_initializer="normal", admission=strategies.Admission(2)
)
items = strategies.TableConfig("items", 3, admission=strategies.Admission(2, memory=4096))
times = strategies.TableConfig("times", 2, eviction=strategies.Eviction(age=5))
FEATURES = {
    "user": strategies.FeatureConfig(users),
    "friend": strategies.FeatureConfig(users),
    "item": strategies.FeatureConfig(items),
    "time": strategies.FeatureConfig(times),
}
random = np.random.default_rng(len(list(directory.iterdir())))
ROWS = 24


def model_of():
    with strategy.scope():
        layer = embedding_of(api)(features=FEATURES, name="tables")
        inputs = {name: keras.Input([1], dtype="int64", name=name) for name in FEATURES}
        joined = keras.layers.Concatenate()(list(layer(inputs).values()))
        outputs = keras.layers.Dense(1)(keras.layers.Flatten()(joined))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return model, layer


def fit(model):
    x = {name: random.integers(-9, 9, size=[96, 1]) for name in FEATURES}
    y = random.normal(size=[96, 1])
    model.fit(x, y, batch_size=ROWS, verbose=0, shuffle=False)


def rows_of(layer):
    """Returns all arrays in the order of the ids, so that who had them makes no difference."""
    arrays = dict(layer.snapshot_rows())
    for position in range(3):
        for key, prefix in ((f"{position}/ids", ""), (f"{position}/refused_ids", "refused_")):
            if key in arrays:
                order = np.argsort(arrays[key])
                for name in arrays:
                    is_refused = "refused" in name
                    of_table = name.startswith(f"{position}/") and is_refused == bool(prefix)
                    is_one = name.endswith(("step", "sketch")) or "initial" in name
                    if of_table and not is_one:
                        arrays[name] = arrays[name][order]
    return arrays


def compare(layer, expected):
    found = rows_of(layer)
    assert set(found) == set(expected), set(found) ^ set(expected)
    assert {"2/ids", "2/rows", "2/slot/accumulator", "2/refused_ids", "0/sketch"} <= set(found)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def moved(model, how):
    """Restores what was saved in one of the ways."""
    if how == "rows":
        next(each for each in model.layers if each.name == "tables").load_rows(
            str(directory / "rows")
        )
    elif how == "weights":
        # As from any file of weights, an optimizer loads the slot variables that it has.
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
        model.load_weights(str(directory / "model.weights.h5"))
    else:
        tf.train.Checkpoint(model=model).restore(str(directory / "checkpoint")).expect_partial()


before = directory / "expected.npz"
if before.exists():
    with np.load(before) as file:
        expected = dict(file)
    for how in ways:
        model, layer = model_of()
        moved(model, how)
        compare(layer, expected)
        fit(model)  # the optimizer makes the slot variables now, or has them
        assert len(rows_of(layer)["2/ids"]) >= len(expected["2/ids"])
        if (api, how) == ("tf_keras", "weights"):
            # From such a file it does not load metrics that there are, under no strategy of
            # several replicas, TensorFlow's neither: a variable cannot be divided that is a file's.
            continue
        model, layer = model_of()
        fit(model)
        moved(model, how)
        compare(layer, expected)
else:
    model, layer = model_of()
fit(model)
layer.save_rows(str(directory / "rows"))
fit(model)
layer.evict()
layer.save_rows(str(directory / "rows"), delta=True)
with strategies.writing(directory / "model.weights.h5", strategy) as path:
    model.save_weights(path)
with strategies.writing(directory / "checkpoint", strategy) as path:
    tf.train.Checkpoint(model=model).write(path)
if api == "keras":
    with strategies.writing(directory / "model.keras", strategy) as path:
        model.save(path)
    with strategy.scope():
        again = keras.models.load_model(directory / "model.keras")
    compare(again.get_layer("tables"), rows_of(layer))
    x = {name: random.integers(-9, 9, size=[6, 1]) for name in FEATURES}
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
arrays = rows_of(layer)
with strategies.writing(before, strategy) as path:
    np.savez(path, **arrays)
print("passed")
