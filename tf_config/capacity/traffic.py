"""What tables send over the network in a step."""

from __future__ import annotations

from dataclasses import dataclass

from tf_config.capacity.memory import FLOAT
from tf_config.capacity.table import PlannedTable

# Which table, which id, and how often it came: int64 each.
KEY_BYTES = 24


@dataclass(frozen=True)
class Traffic:
    """Bytes of one table that one worker exchanges in one step with the tasks that have the rows.

    Attributes:
      unique: how many different ids the worker has.
      away: how many of them are not its own.
      ids: bytes that say which rows are asked for.
      rows: bytes of the rows.
      gradients: bytes of their gradients.
    """

    unique: float
    away: float
    ids: float
    rows: float
    gradients: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.ids + self.rows + self.gradients


def traffic_of(table: PlannedTable, batch: float, workers: int, servers: int) -> Traffic:
    """Returns what one worker exchanges for a table in one step.

    Args:
      table: the table.
      batch: examples of one worker.
      workers: they have the rows if there are no servers, and each of them its own part.
      servers: they have the rows if there are any.
    """
    unique = table.unique_of(batch)
    away = unique if servers else unique * (workers - 1) / workers
    numbers = FLOAT * table.width * away
    return Traffic(unique, away, KEY_BYTES * away, numbers, numbers)
