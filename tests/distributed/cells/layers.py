"""Layers, types and penalties: one `fit` each."""

from __future__ import annotations

from typing import Any

import numpy as np

from cells.lab import CLASSES, WIDTH, Cell, Lab, check

WORDS, LENGTH = 20, 5


def dense(lab: Lab) -> dict[str, Any]:
    """Dense"""
    layers = lab.keras.layers
    model = lab.sequential(lambda: layers.Dense(8, "tanh"), lambda: layers.Dense(CLASSES))
    lab.compile(model)
    return lab.fit(model, *lab.rows())


def adam(lab: Lab) -> dict[str, Any]:
    """Adam"""
    layers = lab.keras.layers
    model = lab.sequential(lambda: layers.Dense(8, "tanh"), lambda: layers.Dense(CLASSES))
    lab.compile(model, lambda: lab.keras.optimizers.Adam(0.02))
    return lab.fit(model, *lab.rows())


def dropout(lab: Lab) -> dict[str, Any]:
    """Dropout"""
    layers = lab.keras.layers
    lab.keras.utils.set_random_seed(0)
    model = lab.sequential(
        lambda: layers.Dense(32, "tanh"),
        lambda: layers.Dropout(0.2),
        lambda: layers.Dense(CLASSES),
    )
    lab.compile(model)
    return lab.fit(model, *lab.rows())


def batch_normalization(lab: Lab) -> dict[str, Any]:
    """BatchNormalization"""
    layers = lab.keras.layers
    model = lab.sequential(
        lambda: layers.Dense(8),
        lambda: layers.BatchNormalization(momentum=0.5),
        lambda: layers.Dense(CLASSES),
    )
    lab.compile(model)
    return lab.fit(model, *lab.rows())


def embedding(lab: Lab) -> dict[str, Any]:
    """Embedding"""
    layers = lab.keras.layers
    model = lab.sequential(
        lambda: layers.Embedding(WORDS, 4),
        lambda: layers.GlobalAveragePooling1D(),
        lambda: layers.Dense(CLASSES),
        **_words(lab),
    )
    lab.compile(model)
    x = np.random.default_rng(1).integers(0, WORDS, size=[64, LENGTH])
    return lab.fit(model, x, x[:, 0] % CLASSES)


def _words(lab: Lab) -> dict[str, Any]:
    """Returns the arguments of an input layer for words' numbers."""
    return {"shape" if lab.is_keras_3 else "input_shape": [LENGTH], "dtype": "int64"}


def _recurrent(lab: Lab, kind: str) -> dict[str, Any]:
    layers = lab.keras.layers
    shape = {"shape" if lab.is_keras_3 else "input_shape": [3, WIDTH // 3]}
    model = lab.sequential(lambda: getattr(layers, kind)(6), lambda: layers.Dense(CLASSES), **shape)
    lab.compile(model)
    x, y = lab.rows()
    return lab.fit(model, x.reshape([len(x), 3, WIDTH // 3]), y)


def lstm(lab: Lab) -> dict[str, Any]:
    """LSTM"""
    return _recurrent(lab, "LSTM")


def gru(lab: Lab) -> dict[str, Any]:
    """GRU"""
    return _recurrent(lab, "GRU")


def _mixed(lab: Lab, policy: str) -> dict[str, Any]:
    layers = lab.keras.layers
    lab.keras.mixed_precision.set_global_policy(policy)
    try:
        model = lab.sequential(
            lambda: layers.Dense(8, "tanh"), lambda: layers.Dense(CLASSES, dtype="float32")
        )
        lab.compile(model)
        check(model.layers[0].compute_dtype == policy.removeprefix("mixed_"), "not mixed")
        return lab.fit(model, *lab.rows())
    finally:
        lab.keras.mixed_precision.set_global_policy("float32")


def mixed_bfloat16(lab: Lab) -> dict[str, Any]:
    """mixed_bfloat16"""
    return _mixed(lab, "mixed_bfloat16")


def mixed_float16(lab: Lab) -> dict[str, Any]:
    """mixed_float16"""
    return _mixed(lab, "mixed_float16")


def regularizers(lab: Lab) -> dict[str, Any]:
    """Regularizers"""
    layers, l2 = lab.keras.layers, lab.keras.regularizers.L2
    model = lab.sequential(
        lambda: layers.Dense(8, "tanh", kernel_regularizer=l2(0.05)),
        lambda: layers.Dense(CLASSES, bias_regularizer=l2(0.05)),
    )
    lab.compile(model)
    return lab.fit(model, *lab.rows())


CELLS = [
    Cell(dense),
    Cell(adam),
    Cell(dropout, tolerance=None),
    Cell(batch_normalization, tolerance=None),
    Cell(embedding),
    Cell(lstm),
    Cell(gru),
    Cell(mixed_bfloat16, tolerance=0.05),
    Cell(mixed_float16, tolerance=0.05),
    Cell(regularizers),
]
