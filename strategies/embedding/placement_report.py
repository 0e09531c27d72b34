"""Report of each table's placement, the reason for it, its memory and its traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.embedding.config import TableConfig
from tf_config.capacity import format_bytes
from tf_config.text_table import text_table


@dataclass(frozen=True)
class Placement:
    """Placement of a table's rows and the reason for it.

    >>> placement_on_workers(4).where
    'sharded over 4 workers'

    Attributes:
      where: tasks that store the rows.
      why: reason for the placement.
      copies: number of copies of each row.
      task_type: type of the tasks that store the rows.
    """

    where: str
    why: str
    copies: int = 1
    task_type: str = "worker"


def placement_on_workers(workers: int) -> Placement:
    """Returns the placement of tables whose rows are sharded over workers."""
    if workers == 1:
        return Placement(
            "host memory", "a single worker trains, so it has all rows, and nothing is sent"
        )
    return Placement(
        f"sharded over {workers} workers",
        "a hash of the id selects the only worker that has its row, slot variables and counts, so "
        "a table can use the memory of all workers; ids, rows and gradients are sent",
    )


def placement_of_copies(workers: int) -> Placement:
    """Returns the placement of tables whose rows are replicated on workers."""
    if workers == 1:
        return placement_on_workers(1)
    return Placement(
        f"a copy in each of {workers} workers",
        "placement='replicated': a lookup does not wait for rows; ids and gradients are sent to "
        "all workers",
        workers,
    )


def placement_on_servers(servers: int, are_trained_there: bool = True) -> Placement:
    """Returns the placement of tables whose rows are sharded over parameter servers.

    Args:
      servers: number of servers.
      are_trained_there: whether the servers train the rows in each step; otherwise, workers do so
        between two exchanges.
    """
    traffic = (
        "ids, rows and gradients are sent between workers and servers"
        if are_trained_there
        else "each worker fetches the rows that it uses, trains them itself, and sends what it has "
        "changed every geo_steps steps"
    )
    return Placement(
        f"sharded over {servers} server{'s' if servers > 1 else ''}",
        "a hash of the id selects the server that has its row, slot variables and counts; "
        f"{traffic}",
        task_type="ps",
    )


@dataclass(frozen=True)
class TableUsage:
    """Memory and traffic of one table, over all workers.

    Attributes:
      name: name of the table.
      placement: placement of its rows.
      width: width of a row.
      slots: names of the slot variables that exist so far.
      rows: number of ids with a row.
      row_bytes: size of one row in bytes, including slot variables, metadata and id.
      counter_bytes: size in bytes of the counts of ids without a row.
      steps: number of training steps so far.
      traffic_bytes: bytes sent between workers, or between workers and servers, in these steps.
      limit: sentence on the number of rows and their eviction; empty if rows stay.
    """

    name: str
    placement: Placement
    width: int
    slots: Sequence[str]
    rows: int
    row_bytes: int
    counter_bytes: int
    steps: int
    traffic_bytes: int
    limit: str = ""


def limit_of(config: TableConfig) -> str:
    """Returns a sentence on which rows of a table are evicted during training, and when.

    >>> limit_of(TableConfig("users", 16, 1000, overflow="evict"))
    'users: at most 1,000 rows; a full shard evicts its least recently used rows'
    >>> from strategies import Eviction
    >>> limit_of(TableConfig("users", 16, eviction=Eviction(seconds=3600, count=2, every=100)))
    'users: every 100 steps, evicts rows used fewer than 2 times or not for 3600 seconds'
    """
    rule, parts = config.eviction, []
    if config.overflow == "evict":
        is_lfu = rule is not None and rule.policy == "lfu"
        which = "frequently" if is_lfu else "recently"
        parts.append(
            f"at most {config.input_dim:,} rows; a full shard evicts its least {which} used rows"
        )
    if rule is not None and rule.every is not None:
        reasons = []
        if rule.count is not None:
            reasons.append(f"used fewer than {rule.count:,} times")
        if rule.age is not None:
            reasons.append(f"not for {rule.age:,} steps")
        if rule.seconds is not None:
            reasons.append(f"not for {rule.seconds:g} seconds")
        parts.append(f"every {rule.every:,} steps, evicts rows {' or '.join(reasons)}")
    return f"{config.name}: {'; '.join(parts)}" if parts else ""


def report(tables: Sequence[TableUsage]) -> str:
    """Returns a text table with a line for each table, and the reasons and limits below it."""
    header = ("table", "where", "rows", "bytes per row", "bytes", "sent per step")
    rows = []
    for table in tables:
        slots = ", ".join(table.slots) or "no slot variables yet"
        size = table.placement.copies * table.rows * table.row_bytes + table.counter_bytes
        rows.append(
            (
                table.name,
                table.placement.where,
                f"{table.rows:,} x {table.width}",
                f"{table.row_bytes:,} ({slots})",
                format_bytes(size),
                format_bytes(table.traffic_bytes / max(table.steps, 1)),
            )
        )
    reasons = dict.fromkeys(f"{table.placement.where}: {table.placement.why}" for table in tables)
    limits = [table.limit for table in tables if table.limit]
    return "\n".join([text_table(header, rows), *reasons, *limits])
