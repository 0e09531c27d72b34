"""What tables take of a task's memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tf_config.capacity.table import PlannedTable

FLOAT = 4
# In which step a row was trained on last, and how often: one int64.
TIMES_AND_COUNTS = 8
# Of TensorFlow's MutableHashTable, measured: 40 to 48, by how full it is.
MAP_ENTRY = 48
# A Python process with TensorFlow and Keras that has made a small model, measured.
PROGRAM = 700 << 20
# TensorFlow's in-place operations count rows in int32.
MOST_ROWS = 2**31 - 1
# What an array that is not small leaves behind when it moves to where it has room, measured.
_SMALL, _LEFT_BEHIND = 16 << 20, 64 << 20
# What a row is in the list of ids and places that is made to save a table, and what is made of the
# pieces in which the rows are written, measured.
_LISTED, _PIECES = 16, 48 << 20


@dataclass(frozen=True)
class Memory:
    """Bytes of one task that has an equal part of the rows.

    Attributes:
      rows: their numbers.
      slot_variables: the optimizer's, for these rows.
      times_and_counts: when a row was trained on last, and how often.
      map: where each id's row is.
      growth: what arrays leave behind that have outgrown their first place.
      program: Python, TensorFlow, Keras and a small model.
      saving: what saving adds: a list of the largest table's ids, and some rows at a time.
      moving: what the largest array adds while it is copied to where it has more room.
      most_rows: the most rows that one array has: tables of one width share it.
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
        """What is held while training."""
        return self.state + self.program

    @property
    def state(self) -> float:
        """What is held of the tables."""
        held = self.rows + self.slot_variables + self.times_and_counts + self.map
        return held + self.growth

    @property
    def peak(self) -> float:
        """What is held while rows are saved, or while an array is copied, whichever is more."""
        return self.training + max(self.saving, self.moving)


def row_bytes(width: int, slot_variables: int) -> int:
    """Returns the bytes of one row, with its slot variables and its place in the map.

    >>> row_bytes(16, 2)
    248
    """
    return FLOAT * width * (1 + slot_variables) + TIMES_AND_COUNTS + MAP_ENTRY


def memory_of(tables: Sequence[PlannedTable], slot_variables: int, holders: int) -> Memory:
    """Returns what each of so many tasks takes that have the rows of tables among them."""
    parts = {table.name: math.ceil(table.rows / holders) for table in tables}
    values = sum(FLOAT * table.width * parts[table.name] for table in tables)
    widths: dict[int, float] = {}
    for table in tables:
        widths[table.width] = widths.get(table.width, 0) + parts[table.name]
    arrays = [
        size * rows
        for width, rows in widths.items()
        for size in (*[FLOAT * width] * (1 + slot_variables), TIMES_AND_COUNTS)
    ]
    count = sum(parts.values())
    return Memory(
        rows=values,
        slot_variables=values * slot_variables,
        times_and_counts=TIMES_AND_COUNTS * count,
        map=MAP_ENTRY * count,
        growth=sum(_LEFT_BEHIND for size in arrays if size > _SMALL),
        program=PROGRAM,
        saving=_LISTED * max(parts.values()) + _PIECES,
        moving=max(arrays),
        most_rows=max(widths.values()),
    )
