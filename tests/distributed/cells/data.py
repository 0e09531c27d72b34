"""Data: uneven, of several inputs and outputs, weighted."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from cells.lab import BATCH, CLASSES, WIDTH, Cell, Lab, check


def _model(lab: Lab) -> Any:
    layers = lab.keras.layers
    return lab.sequential(lambda: layers.Dense(8, "tanh"), lambda: layers.Dense(CLASSES))


def uneven(lab: Lab) -> dict[str, Any]:
    """Uneven data (last batch of 1 example)"""
    model = _model(lab)
    lab.compile(model)
    return lab.fit(model, *lab.rows(2 * BATCH + 1))


def few_rows(lab: Lab) -> dict[str, Any]:
    """Fewer examples than a batch (7)"""
    model = _model(lab)
    lab.compile(model)
    return lab.fit(model, *lab.rows(7))


def pipeline(lab: Lab) -> dict[str, Any]:
    """`tf.data` of unknown length"""
    model = _model(lab)
    lab.compile(model)
    rows = tf.data.Dataset.from_tensor_slices(lab.rows())
    # 52 rows, so that all replicas have the same number in the last batch.
    dataset = rows.filter(lambda x, y: x[0] < 0.8).batch(BATCH)
    facts = lab.fit(model, dataset, batch_size=None)
    # A step that finds no batch may count all the same (`optimizer.iterations`), and in one
    # process as well: what does not need the batch runs beside the look for it.
    return {name: facts[name] for name in ("logs", "weights")}


def several(lab: Lab) -> dict[str, Any]:
    """Several inputs and outputs"""
    keras, layers = lab.keras, lab.keras.layers

    def make() -> Any:
        inputs = {name: keras.Input([WIDTH], name=name) for name in ("left", "right")}
        both = layers.Concatenate()([layers.Dense(4, "tanh")(one) for one in inputs.values()])
        outputs = {
            "group": layers.Dense(CLASSES, name="group")(both),
            "total": layers.Dense(1, name="total")(both),
        }
        return keras.Model(inputs, outputs)

    model = lab.made(make)
    classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    lab.compile(
        model,
        loss={"group": classes, "total": "mse"},
        loss_weights={"group": 1.0, "total": 0.1},
        metrics={"group": ["accuracy"], "total": ["mae"]},
    )
    x, y = lab.rows()
    inputs = {"left": x, "right": x[::-1].copy()}
    targets = {"group": y, "total": x.sum(axis=1, keepdims=True)}
    facts = lab.fit(model, inputs, targets)
    predictions = model.predict(inputs, batch_size=BATCH, verbose=0)
    shapes = {name: rows.shape for name, rows in predictions.items()}
    check(shapes == {"group": (len(x), CLASSES), "total": (len(x), 1)}, f"predicted {shapes}")
    return {**facts, "predictions": {name: p.tolist() for name, p in predictions.items()}}


def sample_weight(lab: Lab) -> dict[str, Any]:
    """`sample_weight`"""
    model = _model(lab)
    lab.compile(model, weighted_metrics=["accuracy"])
    x, y = lab.rows()
    return lab.fit(model, x, y, sample_weight=np.linspace(0.1, 2, len(x)).astype("float32"))


def class_weight(lab: Lab) -> dict[str, Any]:
    """`class_weight`"""
    model = _model(lab)
    lab.compile(model)
    return lab.fit(model, *lab.rows(), class_weight={0: 0.5, 1: 1.0, 2: 2.0})


CELLS = [
    # Keras divides a replica's mean loss by the number of replicas, even of those without rows.
    Cell(uneven, tolerance=None),
    Cell(few_rows, tolerance=None),
    Cell(pipeline),
    Cell(several),
    Cell(sample_weight),
    Cell(class_weight),
]
