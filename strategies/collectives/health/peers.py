"""What the other workers of a job do, as they tell it, and for how long they have been silent."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Protocol

from tf_config import Task

SILENT_SECONDS = 15.0
# Between two looks; after a longer pause it is not known who was silent meanwhile.
_LONGEST_PAUSE_SECONDS = 30.0


class Entries(Protocol):
    """Texts of all workers, in a place that each of them reaches."""

    def put(self, key: Task | str, value: bytes) -> bool:
        """Writes an entry; returns whether the place was reached."""

    def get(self, key: Task | str) -> bytes | None:
        """Returns an entry; None if there is none, or the place was not reached."""


@dataclasses.dataclass(frozen=True)
class State:
    """What a worker is doing, as it tells the others.

    Attributes:
      kind: of the collective operation that it waits in: "eager", "function", "" for none.
      operation: which one.
      waited: for how many seconds.
      place: the line of the user's program, and the call.
      ended: whether it has ended.
      beat: another number each time that it tells.
      silent: for how many seconds it has told nothing, as seen by the one that reads it.
    """

    kind: str = ""
    operation: str = ""
    waited: float = 0.0
    place: str = ""
    ended: bool = False
    beat: int = 0
    silent: float = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether it has told nothing for longer than it takes a busy worker to tell."""
        return self.silent >= SILENT_SECONDS

    def may_match(self, other: State) -> bool:
        """Returns whether two workers may wait in the same operation."""
        return bool(self.kind) and (self.kind, self.operation) == (other.kind, other.operation)

    def describe(self, seconds: float) -> str:
        """Returns a description of what the worker does."""
        if self.ended:
            return "has ended"
        if self.is_silent:
            return f"has said nothing for {self.silent:.0f} s"
        doing = "waits" if self.waited >= seconds else "is"
        return f"{doing} in {self.place}" if self.place else doing

    def to_bytes(self) -> bytes:
        """Returns the entry that `from_bytes` reads."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_bytes(cls, entry: bytes | None) -> State | None:
        """Returns what a worker wrote; None if it is nothing that a worker of this version did.

        >>> State.from_bytes(State("function", "all_reduce").to_bytes()).operation
        'all_reduce'
        """
        try:
            return None if entry is None else cls(**json.loads(entry))
        except (TypeError, ValueError, RecursionError):
            return None


class Peers:
    """The other workers of a job.

    Args:
      entries: of all workers.
      others: the tasks of the others.
    """

    def __init__(self, entries: Entries, others: Sequence[Task]):
        self.others = tuple(others)
        self._entries = entries
        self._last: dict[Task, bytes | None] = {}
        self._changed: dict[Task, float] = {}
        self._looked = float("-inf")

    def state_of(self, task: Task) -> State | None:
        """Returns what a worker does; None if that is not known."""
        return State.from_bytes(self._entries.get(task))

    def look(self, is_reached: bool = True) -> dict[Task, State]:
        """Returns what each of them does, with the seconds for which it has been silent.

        Args:
          is_reached: whether the entries can be reached, so that it is worth asking.
        """
        now = time.monotonic()
        if now - self._looked > _LONGEST_PAUSE_SECONDS:
            self._changed = {}
        self._looked = now
        states = {}
        for task in self.others:
            entry = self._entries.get(task) if is_reached else None
            if entry != self._last.get(task) and entry is not None:
                self._last[task], self._changed[task] = entry, now
            silent = now - self._changed.setdefault(task, now)
            known = State.from_bytes(entry) or State()
            states[task] = dataclasses.replace(known, silent=silent)
        self._looked = time.monotonic()
        return states
