"""Capacity plans: whether embedding tables fit, what limits them, and how many tasks they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tf_config.capacity.memory import MOST_ROWS, Memory, memory_of
from tf_config.capacity.table import PlannedTable, number, parse_number
from tf_config.capacity.traffic import Traffic, traffic_of
from tf_config.errors import ClusterConfigError, quoted, suggestion
from tf_config.text_table import text_table

# The number of slot variables that a Keras optimizer has for each variable.
SLOT_VARIABLES = {
    "sgd": 0,
    "momentum": 1,
    "adagrad": 1,
    "rmsprop": 1,
    "lion": 1,
    "adam": 2,
    "adamw": 2,
    "adadelta": 2,
    "ftrl": 2,
}
_GIB = 1 << 30
_MOST_TASKS = 1 << 40


@dataclass(frozen=True)
class CapacityPlan:
    """The memory and traffic of embedding tables, and the limit; `str` returns a report.

    Attributes:
      tables: the tables.
      batch: the number of examples per worker and step.
      workers: the number of workers.
      servers: the number of parameter servers that hold the rows; 0 if the workers hold them.
      slot_variables: the number of the optimizer's slot variables for each row.
      memory_gib: the memory in GiB that one task may use; None if it is unknown.
      gbit_per_second: the network bandwidth of one task in each direction, in Gbit/s; None if it
        is unknown.
      step_seconds: the number of seconds that a step may take; None for any time.
    """

    tables: tuple[PlannedTable, ...]
    batch: float
    workers: int
    servers: int
    slot_variables: int
    memory_gib: float | None
    gbit_per_second: float | None
    step_seconds: float | None

    @property
    def holders(self) -> int:
        """The number of tasks that hold the rows."""
        return self.servers or self.workers

    @property
    def memory(self) -> Memory:
        """The memory of one task that holds rows."""
        return memory_of(self.tables, self.slot_variables, self.holders)

    @property
    def traffic(self) -> dict[str, Traffic]:
        """The traffic of one worker in a step for each table, by name."""
        return {
            table.name: traffic_of(table, self.batch, self.workers, self.servers)
            for table in self.tables
        }

    @property
    def worker_bytes(self) -> tuple[float, float]:
        """The numbers of bytes that one worker sends and receives in a step."""
        traffic = self.traffic.values()
        if not self.servers:  # each worker requests as many rows as the others request from it
            total = sum(each.total for each in traffic)
            return total, total
        return sum(each.ids + each.gradients for each in traffic), sum(
            each.rows for each in traffic
        )

    @property
    def server_bytes(self) -> tuple[float, float]:
        """The numbers of bytes that one server sends and receives in a step; 0 without servers."""
        if not self.servers:
            return 0.0, 0.0
        sent, received = self.worker_bytes
        share = self.workers / self.servers
        return received * share, sent * share

    @property
    def network_seconds(self) -> float | None:
        """The minimum number of seconds that the network needs for a step; None if unknown."""
        if self.gbit_per_second is None:
            return None
        return self._seconds(max(*self.worker_bytes, *self.server_bytes))

    @property
    def tasks_needed(self) -> int | None:
        """The minimum number of tasks to hold the rows; None if no number is enough."""
        needed = _least(self._fits)
        if needed is None or not self._workers_keep_up:
            return None
        if self.servers and self._bytes_a_step is not None:
            all_servers = max(self.server_bytes) * self.servers
            needed = max(needed, math.ceil(all_servers / self._bytes_a_step))
        return needed

    @property
    def limit(self) -> str:
        """The exceeded limit: "rows" (of an array), "memory", "network" or "neither"."""
        memory = self.memory
        if memory.most_rows > MOST_ROWS:
            return "rows"
        if self.memory_gib is not None and memory.peak > self.memory_gib * _GIB:
            return "memory"
        seconds = self.network_seconds
        if self.step_seconds is not None and seconds is not None and seconds > self.step_seconds:
            return "network"
        return "neither"

    def _fits(self, holders: int) -> bool:
        memory = memory_of(self.tables, self.slot_variables, holders)
        fits = self.memory_gib is None or memory.peak <= self.memory_gib * _GIB
        return fits and memory.most_rows <= MOST_ROWS

    def _seconds(self, count: float) -> float:
        return count * 8 / ((self.gbit_per_second or math.inf) * 1e9)

    @property
    def _bytes_a_step(self) -> float | None:
        """The number of bytes that the network can transfer in each direction in one step."""
        if self.gbit_per_second is None or self.step_seconds is None:
            return None
        return self.gbit_per_second * 1e9 / 8 * self.step_seconds

    @property
    def _workers_keep_up(self) -> bool:
        return self._bytes_a_step is None or max(self.worker_bytes) <= self._bytes_a_step

    def __str__(self) -> str:
        kind = "server" if self.servers else "worker"
        memory = self.memory
        held = {
            "rows": memory.rows,
            f"slot variables, {self.slot_variables} per row": memory.slot_variables,
            "times and counts": memory.times_and_counts,
            "map of ids": memory.map,
            "left unused by growth": memory.growth,
            "the program": memory.program,
            "total": memory.training,
            "temporarily, to save rows": memory.saving,
            "temporarily, to enlarge an array": memory.moving,
        }
        traffic = [
            (
                table.name,
                f"{table.rows:,.0f} x {table.width}",
                f"{self.traffic[table.name].unique:,.0f}",
                *(
                    format_bytes(getattr(self.traffic[table.name], name))
                    for name in ("ids", "rows", "gradients")
                ),
            )
            for table in self.tables
        ]
        header = ("table", "rows", "unique ids per step", "ids", "rows", "gradients")
        lines = [
            text_table(
                (f"memory of each {kind}", ""), [(k, format_bytes(v)) for k, v in held.items()]
            ),
            text_table(header, traffic, "traffic of one worker per step"),
            *self._summary(kind),
        ]
        return "\n".join(lines)

    def _summary(self, kind: str) -> list[str]:
        """Returns the lines that summarize the plan."""
        sent, received = map(format_bytes, self.worker_bytes)
        lines = [f"a worker sends {sent} per step, and receives {received}"]
        if self.servers:
            sent, received = map(format_bytes, self.server_bytes)
            lines.append(f"a server sends {sent} per step, and receives {received}")
        seconds = self.network_seconds
        if seconds:
            most = self.batch * self.workers / seconds
            lines.append(
                f"the network needs {seconds * 1000:,.1f} ms per step, which limits training to "
                f"{most:,.0f} examples per second"
            )
        lines.append(f"limit: {self.limit}")
        needed = self.tasks_needed
        if needed is not None:
            lines.append(f"{kind}s needed: {needed:,}")
        elif _least(self._fits) is None:
            lines.append(
                f"{kind}s needed: no number is enough, because the program alone needs more memory"
            )
        elif self.step_seconds is not None:
            rate = max(self.worker_bytes) * 8 / self.step_seconds / 1e9
            lines.append(
                f"{kind}s needed: no number is enough, because each worker needs {rate:,.2f} "
                "Gbit/s; a smaller batch needs less"
            )
        return lines


def plan_capacity(
    tables: Mapping[str, Mapping[str, Any]],
    *,
    batch: float,
    workers: int = 1,
    servers: int = 0,
    optimizer: str | int = "adam",
    memory_gib: float | None = None,
    gbit_per_second: float | None = None,
    step_seconds: float | None = None,
) -> CapacityPlan:
    """Returns a plan of the memory, network traffic and tasks that embedding tables need.

    >>> tables = {"users": {"rows": 1e9, "width": 16, "zipf": 1.05}}
    >>> plan = plan_capacity(
    ...     tables, batch=4096, workers=4, optimizer="adagrad", memory_gib=32
    ... )
    >>> plan.limit, plan.tasks_needed
    ('memory', 8)

    Args:
      tables: a dictionary from each table's name to its attributes: `rows` and `width`; `hotness`,
        the number of ids per example (1 by default); and how often ids repeat, as `unique_ratio`
        or `zipf`. See `PlannedTable`.
      batch: the number of examples per worker and step.
      workers: the number of workers.
      servers: the number of parameter servers that hold the rows; 0 if the workers hold them.
      optimizer: the optimizer's name, or its number of slot variables for each row.
      memory_gib: the memory in GiB that one task may use; None if it is unknown.
      gbit_per_second: the network bandwidth of one task in each direction, in Gbit/s; None if it
        is unknown.
      step_seconds: the number of seconds that a step may take; None for any time.

    Raises:
      ClusterConfigError: if an argument is invalid.
    """
    if not isinstance(tables, Mapping) or not tables:
        raise ClusterConfigError(
            "tables must be a mapping from names to at least one table. Received: "
            f"{quoted(tables)}."
        )
    for name, count, least in (("workers", workers, 1), ("servers", servers, 0)):
        number(name, count, least)
        if count != int(count):
            raise ClusterConfigError(f"{name} must be an integer. Received: {count!r}.")
    number("batch", batch, 1)
    for name, value in (
        ("memory_gib", memory_gib),
        ("gbit_per_second", gbit_per_second),
        ("step_seconds", step_seconds),
    ):
        if value is not None:
            number(name, value, 0, is_above=True)
    if step_seconds is not None and gbit_per_second is None:
        raise ClusterConfigError(
            "step_seconds requires gbit_per_second. Received: step_seconds only. Add "
            "gbit_per_second."
        )
    return CapacityPlan(
        tables=tuple(PlannedTable.from_dict(name, table) for name, table in tables.items()),
        batch=batch,
        workers=int(workers),
        servers=int(servers),
        slot_variables=_slot_variables(optimizer),
        memory_gib=memory_gib,
        gbit_per_second=gbit_per_second,
        step_seconds=step_seconds,
    )


def format_bytes(count: float) -> str:
    """Returns a number of bytes as text in a suitable unit.

    >>> format_bytes(12), format_bytes(3 << 19), format_bytes(7e12)
    ('12 bytes', '1.5 MiB', '6.4 TiB')
    """
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    step = 0
    while count >= 1024 and step < len(units) - 1:
        count /= 1024
        step += 1
    return f"{count:,.0f} {units[step]}" if step == 0 else f"{count:,.1f} {units[step]}"


def _slot_variables(optimizer: Any) -> int:
    if isinstance(optimizer, str) and optimizer.lower() in SLOT_VARIABLES:
        return SLOT_VARIABLES[optimizer.lower()]
    count = parse_number("optimizer", optimizer) if str(optimizer).isdigit() else optimizer
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 100:
        raise ClusterConfigError(
            f"optimizer must be one of {', '.join(SLOT_VARIABLES)}, or the number of its slot "
            f"variables. Received: {quoted(optimizer)}. Choose one of these."
            f"{suggestion(optimizer, SLOT_VARIABLES)}"
        )
    return count


def _least(fits: Callable[[int], bool]) -> int | None:
    """Returns the smallest number of tasks for which `fits` returns True; None if there is none."""
    if not fits(_MOST_TASKS):
        return None
    low, high = 0, 1
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
