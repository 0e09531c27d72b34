"""The rows of parameter_server.py's click model, and how many steps are made; needs NumPy alone."""

from __future__ import annotations

import gc
import os
import sys

import numpy as np

SHORT = "--short" in sys.argv
INTEGERS, CATEGORIES = 13, 26
TABLE_ROWS, WIDTH = (10_001, 10) if SHORT else (1_000_001, 10)
UNITS, HIDDEN_LAYERS = 400, 3
ROWS = 512  # a step and worker
BATCHES = 50  # different ones
# In "geo", the first of the exchanges, which follow every 100 steps, is a part of the warm-up.
STEPS, WARM_UP = (10, 5) if SHORT else (200, 150)
EXPONENT = 1.1  # of the power law that ids follow


def batches() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns logarithms, ids and labels, [batches, rows, ...]; others in each process."""
    random = np.random.default_rng(int.from_bytes(os.urandom(4), "big"))
    logarithms = random.standard_normal([BATCHES, ROWS, INTEGERS], dtype=np.float32)
    power = 1 - EXPONENT
    uniform = random.random([BATCHES, ROWS, CATEGORIES])
    ranks = (1 - uniform * (1 - (TABLE_ROWS + 1.0) ** power)) ** (1 / power)
    # Each feature has its most frequent ids elsewhere in the table.
    ids = (ranks.astype(np.int64) + np.arange(CATEGORIES) * 7919) % TABLE_ROWS
    # What can be learned: a system whose loss does not fall is not measured.
    labels = (logarithms[..., :4].sum(-1, keepdims=True) > 0).astype(np.float32)
    return logarithms, ids, labels


def collect_garbage() -> None:
    """Collects garbage before what is measured, so that no full collection falls into it by chance.

    A full collection takes some 200 ms in a process that has imported TensorFlow, a twentieth of
    what is measured. When Python makes one depends on how many objects the warm-up has left.
    """
    gc.collect()


def check_loss(loss: float) -> None:
    """Checks that a model has learned in its steps.

    Raises:
      RuntimeError: if its loss is no lower than that of a model that has not, 0.69.
    """
    if not (SHORT or loss < 0.6):
        raise RuntimeError(f"A system that is measured learns. Received: a last loss of {loss}.")
