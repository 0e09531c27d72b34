"""The network traffic of embedding tables in a step."""

from __future__ import annotations

from dataclasses import dataclass

from tf_config.capacity.table import BYTES, PlannedTable

# A requested key consists of the table, the id and its count: int64 each.
KEY_BYTES = 24


@dataclass(frozen=True)
class Traffic:
    """The bytes that a worker exchanges for a table in a step with the tasks that hold its rows.

    Attributes:
      unique: the number of unique ids of the worker.
      away: the number of unique ids whose rows other tasks hold.
      ids: the number of bytes of the requests for rows.
      rows: the number of bytes of the rows.
      gradients: the number of bytes of the rows' gradients.
    """

    unique: float
    away: float
    ids: float
    rows: float
    gradients: float

    @property
    def total(self) -> float:
        """The total number of bytes."""
        return self.ids + self.rows + self.gradients


def traffic_of(table: PlannedTable, batch: float, workers: int, servers: int) -> Traffic:
    """Returns the traffic of one worker for a table in one step.

    Args:
      table: the table.
      batch: the number of examples of one worker.
      workers: the number of workers. Without servers, each of them holds a part of the rows.
      servers: the number of servers, which hold the rows if there are any.
    """
    unique = table.unique_of(batch)
    away = unique if servers else unique * (workers - 1) / workers
    values = BYTES[table.exchange_dtype] * table.width * away
    return Traffic(unique, away, KEY_BYTES * away, values, values)
