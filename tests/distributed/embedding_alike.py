"""The same rows and predictions under every strategy, of tables and features that are drawn.

embedding_alike.py FILE CASE none|mirrored|central_storage|cluster
CASE is JSON, as embedding/strategies_test.py draws it. The run "none" saves what came of it to
FILE; the others compare.
"""

import contextlib
import json
import sys

import keras
import numpy as np
import tensorflow as tf

import strategies
from tests.support.embeddings import all_rows

file, case, kind = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
STEPS = 5
strategy = {
    "none": tf.distribute.get_strategy,
    "mirrored": lambda: strategies.MirroredStrategy(num_replicas=2),
    "central_storage": lambda: strategies.CentralStorageStrategy(num_replicas=2),
    "cluster": lambda: strategies.from_tf_config(mode="sync"),
}[kind]()
random = np.random.default_rng(case["seed"])
ids = np.unique(random.integers(-(2**63), 2**63 - 1, size=case["ids"], endpoint=True))
rows = STEPS * case["batch"]
TABLES = [
    strategies.TableConfig(f"table{number}", width, embeddings_initializer="normal")
    for number, width in enumerate(case["widths"])
]
FEATURES = {
    f"feature{number}": strategies.FeatureConfig(TABLES[each["table"]], each["combiner"])
    for number, each in enumerate(case["features"])
}


class Joined(keras.layers.Layer):
    """Makes ragged what came as dense ids and lengths: rows of a batch are cut as they are."""

    def __init__(self):
        super().__init__()
        self.embedding = strategies.DistributedEmbedding(features=FEATURES)

    def call(self, x, training=None):
        inputs, weights = {}, {}
        for each, name in zip(case["features"], FEATURES, strict=True):
            parts = [x[f"{name}_ids"], x[f"{name}_weights"]]
            if each["ragged"]:
                lengths = x[f"{name}_lengths"]
                parts = [tf.RaggedTensor.from_tensor(part, lengths=lengths) for part in parts]
            inputs[name], weight = parts
            if each["weighted"]:
                weights[name] = weight
        outputs = self.embedding(inputs, weights=weights, training=training)
        flat = [
            tf.reshape(output, [-1, width_of(feature, each)])
            for output, feature, each in zip(
                outputs.values(), FEATURES.values(), case["features"], strict=True
            )
        ]
        return tf.concat(flat, 1)


def width_of(feature, each):
    hotness = each["hotness"] if each["combiner"] is None else 1
    return feature.table.output_dim * hotness


x = {}
for each, name in zip(case["features"], FEATURES, strict=True):
    shape = rows, each["hotness"]
    x[f"{name}_ids"] = random.choice(ids, size=shape)
    x[f"{name}_weights"] = random.uniform(0.5, 2.0, size=shape).astype("float32")
    x[f"{name}_lengths"] = random.integers(0, each["hotness"], size=rows, endpoint=True)
y = random.normal(size=[rows, 1]).astype("float32")
with contextlib.nullcontext() if kind == "none" else strategy.scope():
    optimizer = {
        "SGD": lambda: keras.optimizers.SGD(0.05),
        "Adagrad": lambda: keras.optimizers.Adagrad(0.05),
        "Adam": lambda: keras.optimizers.Adam(0.01),
    }[case["optimizer"]]()
    inputs = {
        name: keras.Input(each.shape[1:], dtype=each.dtype.name, name=name)
        for name, each in x.items()
    }
    joined = Joined()
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(joined(inputs)))
    model.compile(optimizer, "mse")
model.fit(x, y, batch_size=case["batch"], shuffle=False, verbose=0)
found = {"predictions": model.predict(x, batch_size=case["batch"], verbose=0)}
for table in sorted({feature.table.name for feature in FEATURES.values()}):
    found[f"{table}/ids"], found[f"{table}/rows"] = all_rows(strategy, joined.embedding, table)
assert optimizer.iterations == STEPS
strategies.verify_equal(strategy, model.variables)
if kind == "none":
    for name in [name for name in found if name.endswith("/ids")]:
        table, rows_of = name.removesuffix("/ids"), found[name.replace("/ids", "/rows")]
        fresh = strategies.DistributedEmbedding(
            rows_of.shape[1], name=table, embeddings_initializer="normal"
        )
        first = fresh(found[name])
        assert not len(rows_of) or not np.allclose(first, rows_of, atol=1e-3), "nothing was trained"
    np.savez(file, **found)
with np.load(file) as expected:
    assert set(found) == set(expected), set(found) ^ set(expected)
    for name, values in expected.items():
        if name.endswith("ids"):
            np.testing.assert_array_equal(found[name], values, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5, err_msg=name)
print("passed")
