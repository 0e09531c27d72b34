"""The memory that embedding tables use in a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tf_config.capacity.table import BYTES, PlannedTable

# The last step that trained a row, and the number of such steps, packed into one int64.
TIMES_AND_COUNTS = 8
# An entry of TensorFlow's MutableHashTable, measured: 40 to 48, depending on the load factor.
MAP_ENTRY = 48
# A Python process with TensorFlow, Keras and a small model, measured.
PROGRAM = 700 << 20
# TensorFlow's in-place operations count rows in int32.
MOST_ROWS = 2**31 - 1
# What the allocator keeps when an array that is larger than _SMALL grows and is moved, measured.
_SMALL, _LEFT_BEHIND = 16 << 20, 64 << 20
# For saving: a row's entry in the list of ids and row indices, and the buffers with which the rows
# are written, measured.
_LISTED, _PIECES = 16, 48 << 20


@dataclass(frozen=True)
class Memory:
    """The memory, in bytes, of one task that holds an equal share of the rows.

    Attributes:
      rows: the values of the rows.
      slot_variables: the optimizer's slot variables for these rows.
      times_and_counts: the last step that trained each row, and the number of such steps.
      map: the map from ids to rows.
      growth: memory that stays allocated after arrays have grown and were moved.
      program: Python, TensorFlow, Keras and a small model.
      saving: additional memory while saving: a list of the largest table's ids, and buffers.
      moving: additional memory while the largest array is copied to a larger one.
      most_rows: the number of rows (not bytes) of the longest array; tables of the same width and
        dtypes share an array.
    """

    rows: float
    slot_variables: float
    times_and_counts: float
    map: float
    growth: float
    program: float
    saving: float
    moving: float
    most_rows: float

    @property
    def training(self) -> float:
        """The memory held during training."""
        return self.state + self.program

    @property
    def state(self) -> float:
        """The memory held for the tables."""
        rows = self.rows + self.slot_variables + self.times_and_counts + self.map
        return rows + self.growth

    @property
    def peak(self) -> float:
        """The memory held while rows are saved or while an array is copied, whichever is larger."""
        return self.training + max(self.saving, self.moving)


def memory_of(tables: Sequence[PlannedTable], slot_variables: int, holders: int) -> Memory:
    """Returns the memory of each of the `holders` tasks among which the rows are divided."""
    parts = {table.name: math.ceil(table.rows / holders) for table in tables}
    # The bytes of a row and of a slot variable, and the number of rows; tables with the same width
    # and dtypes share arrays.
    shared: dict[tuple[int, int, str], float] = {}
    for table in tables:
        row, slot = (BYTES[dtype] * table.width for dtype in (table.row_dtype, table.slot_dtype))
        key = row, slot, table.exchange_dtype
        shared[key] = shared.get(key, 0) + parts[table.name]
    arrays = [
        size * rows
        for (row, slot, _), rows in shared.items()
        for size in (row, *[slot] * slot_variables, TIMES_AND_COUNTS)
    ]
    count = sum(parts.values())
    return Memory(
        rows=sum(row * rows for (row, _, _), rows in shared.items()),
        slot_variables=sum(slot * rows for (_, slot, _), rows in shared.items()) * slot_variables,
        times_and_counts=TIMES_AND_COUNTS * count,
        map=MAP_ENTRY * count,
        growth=sum(_LEFT_BEHIND for size in arrays if size > _SMALL),
        program=PROGRAM,
        saving=_LISTED * max(parts.values()) + _PIECES,
        moving=max(arrays),
        most_rows=max(shared.values()),
    )
