"""The states that the other workers of a job report, and how long they have been silent."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence

from tf_config import Task
from tf_config.rendezvous.store import Store

SILENT_SECONDS = 15.0
# Between two calls of `look`. After a longer pause it is unknown which workers were silent in it.
_LONGEST_PAUSE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a worker, as it reports it to the others.

    Attributes:
      kind: the kind of the collective operation that it waits in: "eager", "function", "" for none.
      operation: the name of the operation.
      waited: the number of seconds for which it has waited.
      place: the running Keras call and the line of the user's program.
      ended: whether it has ended.
      begun: how many operations it has begun, by their stream.
      pending: (stream, number) of each operation that it waits in.
      beat: a number that differs in each report.
      silent: the number of seconds since its last report, as measured by the reader.
    """

    kind: str = ""
    operation: str = ""
    waited: float = 0.0
    place: str = ""
    ended: bool = False
    begun: Sequence[int] = ()
    pending: Sequence[Sequence[int]] = ()
    beat: int = 0
    silent: float = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether the time since the last report is longer than that of a busy worker."""
        return self.silent >= SILENT_SECONDS

    def may_match(self, other: State) -> bool:
        """Returns whether two workers may wait in the same operation."""
        return bool(self.kind) and (self.kind, self.operation) == (other.kind, other.operation)

    def was_joined_by(self, other: State) -> bool:
        """Returns whether another worker has begun each of the operations that this one waits in.

        The data that it sent may still be on their way, even if it has ended since.
        """
        begun = dict(enumerate(other.begun))
        return bool(self.pending) and all(
            begun.get(stream, 0) >= number for stream, number in self.pending
        )

    def describe(self, seconds: float) -> str:
        """Returns a description of the state."""
        if self.ended:
            return "has ended"
        if self.is_silent:
            return f"has not reported for {self.silent:.0f} s"
        if self.waited >= seconds:
            return f"waits in {self.place}" if self.place else "waits"
        return f"is in {self.place}" if self.place else "has not reported where it is"

    def to_bytes(self) -> bytes:
        """Returns the state as an entry, which `from_bytes` reads."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_bytes(cls, entry: bytes | None) -> State | None:
        """Returns the state in an entry; None if there is none, or another version wrote it.

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
      entries: the entries of all workers.
      others: the tasks of the other workers.
    """

    def __init__(self, entries: Store, others: Sequence[Task]):
        self.others = tuple(others)
        self._entries = entries
        self._last: dict[Task, bytes | None] = {}
        self._changed: dict[Task, float] = {}
        self._looked = float("-inf")
        self._reached = time.monotonic()

    def state_of(self, task: Task) -> State | None:
        """Returns the state of a worker; None if it is unknown."""
        return State.from_bytes(self._entries.get(task))

    def note_reached(self) -> None:
        """Records that the store could be reached just now."""
        self._reached = time.monotonic()

    def look(self, is_reached: bool = True) -> dict[Task, State]:
        """Reads the state of each other worker, and measures how long it has been silent.

        Args:
          is_reached: whether the store can be reached; if not, it is not read, and the workers have
            been silent since it was last reached.
        """
        now = time.monotonic()
        if now - self._looked > _LONGEST_PAUSE_SECONDS:
            self._changed = {}
        # Not just from now on, because requests that fail take seconds: a worker may first look
        # long after its operation began to wait, and little time before the operation fails.
        since = now if is_reached else max(self._reached, now - _LONGEST_PAUSE_SECONDS)
        states = {}
        for task in self.others:
            entry = self._entries.get(task) if is_reached else None
            if entry != self._last.get(task) and entry is not None:
                self._last[task], self._changed[task] = entry, now
            silent = now - self._changed.setdefault(task, since)
            reported = State.from_bytes(entry) or State()
            states[task] = dataclasses.replace(reported, silent=silent)
        self._looked = time.monotonic()  # again, so that slow reads do not count as a pause
        return states
