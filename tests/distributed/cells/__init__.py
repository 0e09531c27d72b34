"""The rows of the compatibility table, each a program of its own."""

from cells import data, layers, training, using
from cells.lab import Cell, Lab, Missing

CELLS: list[Cell] = [*layers.CELLS, *training.CELLS, *using.CELLS, *data.CELLS]

__all__ = ["CELLS", "Cell", "Lab", "Missing"]
