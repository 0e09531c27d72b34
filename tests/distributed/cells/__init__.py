"""The rows of the compatibility tables, each a program of its own."""

from cells import data, layers, rows, training, using
from cells.lab import Cell, Lab, Missing

# By table: what Keras has, and `DistributedEmbedding`.
CELLS: dict[str, list[Cell]] = {
    "models": [*layers.CELLS, *training.CELLS, *using.CELLS, *data.CELLS],
    "rows": rows.CELLS,
}

__all__ = ["CELLS", "Cell", "Lab", "Missing"]
