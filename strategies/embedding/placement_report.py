"""Where the rows of each table are, what they take, and why: a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tf_config.capacity import shown_bytes
from tf_config.text_table import text_table


@dataclass(frozen=True)
class Place:
    """Where rows go, and why; `copies` is how many of them there are.

    >>> place_in_workers(4).where
    'sharded over 4 workers'
    """

    where: str
    why: str
    copies: int = 1


def place_in_workers(workers: int) -> Place:
    """Returns where the rows of tables are that so many workers hold."""
    if workers == 1:
        return Place("host memory", "one worker trains, so it has all rows, and nothing is sent")
    return Place(
        f"sharded over {workers} workers",
        "a hash of the id says which worker has its row, its slot variables and its counts, and "
        "nobody else has them, so that the workers' memory adds up; ids, rows and gradients travel",
    )


def place_in_all_workers(workers: int) -> Place:
    """Returns where the rows of a table are of which each of so many workers has all."""
    if workers == 1:
        return place_in_workers(1)
    return Place(
        f"a copy in each of {workers} workers",
        "placement='replicated': a lookup does not wait for rows; ids and gradients travel to all "
        "workers",
        workers,
    )


def place_on_servers(servers: int) -> Place:
    """Returns where the rows of tables are that so many parameter servers hold."""
    return Place(
        f"sharded over {servers} server{'s' if servers > 1 else ''}",
        "a hash of the id says which server has its row, its slot variables and its counts; ids, "
        "rows and gradients travel between workers and servers",
    )


@dataclass(frozen=True)
class TableUsage:
    """What there is of one table, on all workers together.

    Attributes:
      name: of the table.
      place: where its rows are.
      width: of a row.
      slots: the names of the slot variables that the optimizer has made.
      rows: how many ids have a row.
      row_bytes: of one row, with its slot variables, times, counts and place in the map of ids.
      refused_bytes: of what is counted for ids without a row.
      steps: of training that there were.
      sent: bytes that went between workers, or workers and servers, in these steps.
    """

    name: str
    place: Place
    width: int
    slots: Sequence[str]
    rows: int
    row_bytes: int
    refused_bytes: int
    steps: int
    sent: int


def report(tables: Sequence[TableUsage]) -> str:
    """Returns a table of tables, and the reasons."""
    header = ("table", "where", "rows", "bytes a row", "bytes", "sent a step")
    rows = []
    for table in tables:
        slots = ", ".join(table.slots) or "no slot variables yet"
        size = table.place.copies * table.rows * table.row_bytes + table.refused_bytes
        rows.append(
            (
                table.name,
                table.place.where,
                f"{table.rows:,} x {table.width}",
                f"{table.row_bytes:,} ({slots})",
                shown_bytes(size),
                shown_bytes(table.sent / max(table.steps, 1)),
            )
        )
    reasons = dict.fromkeys(f"{table.place.where}: {table.place.why}" for table in tables)
    return "\n".join([text_table(header, rows), *reasons])
