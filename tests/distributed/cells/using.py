"""What is done with a model besides training: callbacks, files, prediction, evaluation."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

from cells.lab import CLASSES, Cell, Lab, check

# 37 rows in batches of 16: the last batch has 5, which no two or four replicas share evenly.
UNEVEN = 37


def _model(lab: Lab) -> Any:
    layers = lab.keras.layers
    model = lab.sequential(lambda: layers.Dense(8, "tanh"), lambda: layers.Dense(CLASSES))
    lab.compile(model)
    return model


def early_stopping(lab: Lab) -> dict[str, Any]:
    """`EarlyStopping`"""
    model = _model(lab)
    x, y = lab.rows()
    # No epoch is better by 100, so the first one stays the best.
    stop = lab.keras.callbacks.EarlyStopping(
        "val_loss", min_delta=100, patience=2, restore_best_weights=True
    )
    facts = lab.fit(model, x, y, validation_data=(x, y), epochs=9, callbacks=[stop])
    check(len(facts["logs"]["loss"]) == 3, f"stopped after {len(facts['logs']['loss'])} epochs")
    return facts


def reduce_on_plateau(lab: Lab) -> dict[str, Any]:
    """`ReduceLROnPlateau`"""
    model = _model(lab)
    plateau = lab.keras.callbacks.ReduceLROnPlateau(
        "loss", factor=0.5, patience=1, min_delta=100, min_lr=1e-6
    )
    facts = lab.fit(model, *lab.rows(), epochs=4, callbacks=[plateau])
    rate = float(np.asarray(model.optimizer.learning_rate))
    check(abs(rate - 0.05 / 8) < 1e-7, f"the learning rate is {rate}")
    return facts


def weights_in_files(lab: Lab) -> dict[str, Any]:
    """`save_weights`, `load_weights`"""
    model = _model(lab)
    trained = lab.fit(model, *lab.rows())
    with tempfile.TemporaryDirectory() as directory:
        # tf_keras cannot load its own HDF5 files where a model was evaluated, strategy or none.
        path = f"{directory}/model" + (".weights.h5" if lab.is_keras_3 else "")
        model.save_weights(path)
        model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
        model.load_weights(path)
    loaded = lab.weights(model)
    check(loaded["weights"] == trained["weights"], "other weights were loaded than saved")
    return trained


def models_in_files(lab: Lab) -> dict[str, Any]:
    """`model.save`, `load_model`, and training goes on"""
    model = _model(lab)
    lab.fit(model, *lab.rows())
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/model.keras"
        model.save(path)
        with lab.strategy.scope():
            loaded = lab.keras.models.load_model(path)
    check(lab.weights(loaded) == lab.weights(model), "another model was loaded than saved")
    return lab.fit(loaded, *lab.rows())


def predict(lab: Lab) -> dict[str, Any]:
    """`predict`"""
    x, _ = lab.rows(UNEVEN)
    rows = _model(lab).predict(x, batch_size=16, verbose=0)
    check(len(rows) == UNEVEN, f"{len(rows)} of {UNEVEN} rows")
    return {"predictions": rows.tolist()}


def evaluate(lab: Lab) -> dict[str, Any]:
    """`evaluate`"""
    model = _model(lab)
    evaluated = model.evaluate(*lab.rows(UNEVEN), batch_size=16, verbose=0)
    check(np.isfinite(evaluated).all(), f"evaluated to {evaluated}")
    return {"evaluated": evaluated}


CELLS = [
    Cell(early_stopping),
    Cell(reduce_on_plateau),
    Cell(weights_in_files),
    Cell(models_in_files),
    Cell(predict),
    Cell(evaluate),
]
