"""The tables, ids and sizes of NVIDIA's synthetic model "Tiny", as plain numbers.

github.com/NVIDIA-Merlin/distributed-embeddings, examples/benchmarks/synthetic_models/config_v3.py:
55 tables, 58 features, 85 ids an example, by a power law of exponent 1.05. One table's rows are
divided by `scale` where it has more than ten thousand.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

SHORT = "--short" in sys.argv
BATCH = 256 if SHORT else 4096  # of all workers together
BATCHES = 4 if SHORT else 30  # different ones
STEPS, WARM_UP = (5, 3) if SHORT else (40, 10)
EXPONENT = 1.05
NUMBERS = 10
LAYERS = (256, 128)
LEARNING_RATE = 0.01


class Part(NamedTuple):
    """So many tables alike.

    Attributes:
      tables: how many.
      hotness: ids an example of each feature that looks up in such a table.
      rows: of each.
      width: of a row.
    """

    tables: int
    hotness: tuple[int, ...]
    rows: int
    width: int


PARTS = (
    Part(1, (1, 10), 10_000, 8),
    Part(1, (1, 10), 1_000_000, 16),
    Part(1, (1, 10), 25_000_000, 16),
    Part(1, (1,), 25_000_000, 16),
    Part(16, (1,), 10, 8),
    Part(10, (1,), 1_000, 8),
    Part(4, (1,), 10_000, 8),
    Part(2, (1,), 100_000, 16),
    Part(19, (1,), 1_000_000, 16),
)


class Table(NamedTuple):
    """A table, and the columns of each of its features among the ids of an example."""

    name: str
    rows: int
    width: int
    columns: tuple[slice, ...]


def tables(scale: int) -> list[Table]:
    """Returns the tables.

    >>> made = tables(10)
    >>> len(made), sum(len(table.columns) for table in made), made[-1].columns[0].stop
    (55, 58, 85)
    >>> sum(4 * table.rows * table.width for table in tables(1))
    4494725120
    """
    made: list[Table] = []
    column = 0
    for part in PARTS:
        rows = part.rows // scale if part.rows > 10_000 else part.rows
        for _ in range(part.tables):
            columns = []
            for hotness in part.hotness:
                columns.append(slice(column, column + hotness))
                column += hotness
            made.append(Table(f"table{len(made)}", rows, part.width, tuple(columns)))
    return made


def batches(scale: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, int64 [batches, rows, 85], numbers and labels of one worker."""
    random = np.random.default_rng()
    made = tables(scale)
    ids = np.empty([BATCHES, rows, made[-1].columns[-1].stop], np.int64)
    power = 1 - EXPONENT
    for table in made:
        for columns in table.columns:
            drawn = random.random([BATCHES, rows, columns.stop - columns.start])
            ranks = (1 - drawn * (1 - (table.rows + 1.0) ** power)) ** (1 / power)
            # The most frequent ids are not neighbours.
            ids[:, :, columns] = (ranks.astype(np.int64) - 1) * 7919 % table.rows
    numbers = random.standard_normal([BATCHES, rows, NUMBERS], dtype=np.float32)
    labels = random.integers(0, 2, [BATCHES, rows, 1]).astype(np.float32)
    return ids, numbers, labels
