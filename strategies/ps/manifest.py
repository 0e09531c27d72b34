"""The manifest of a server: the variables and tables that it must save to be restarted.

[Note: what a server saves]
A server contains no code of this package that knows its variables: workers create them by adding
operations to graphs. So the workers list them. Before a call that runs new operations, a connection
searches these for handles of variables and tables, and writes a description of each into a table of
the server, the manifest. Nothing can be used that is not in it, and a new kind of variable needs no
code here. The server reads the manifest, creates handles of the same names, and saves their values.

The following are left out: the workers' states, which the server keeps itself; a lock's mark of an
incomplete change, of which there is none whenever the lock is free; and the results that a barrier
keeps for a worker, because calls at barriers are not repeated after a restart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import tensorflow as tf

from strategies.ps.lock import CHANGE
from strategies.variables.restart_marks import RestartMark, marks_in, name_of

_VARIABLE, _TABLE = "VarHandleOp", "MutableHashTableV2"
_NAME = "restart/manifest"
_NOT_SAVED = ("membership/", "kept/", _NAME)


@dataclass(frozen=True)
class StateEntry:
    """The description of a variable or a table of a server.

    Attributes:
      name: the name on the server.
      dtype: the dtype of a variable, or of a table's values.
      shape: the shape of a variable; None if its rank is unknown.
      key_dtype: the dtype of a table's keys; None for a variable.
      length: see `RestartMark`.
      advance: see `RestartMark`.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None = None
    key_dtype: str | None = None
    length: str | None = None
    advance: int = 0

    @property
    def is_table(self) -> bool:
        """Whether this is a table."""
        return self.key_dtype is not None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of the tensors that are saved: a value, or a table's keys and values."""
        return (self.dtype,) if self.key_dtype is None else (self.key_dtype, self.dtype)

    def handle(self) -> tf.Tensor:
        """Adds the handle of the variable or table to the current graph."""
        if self.key_dtype is not None:
            return tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.as_dtype(self.key_dtype),
                value_dtype=tf.as_dtype(self.dtype),
                shared_name=self.name,
            )
        return tf.raw_ops.VarHandleOp(
            dtype=tf.as_dtype(self.dtype), shape=tf.TensorShape(self.shape), shared_name=self.name
        )

    def to_json(self) -> str:
        """Returns the description as JSON, which `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> StateEntry:
        """Returns the description in a text.

        >>> entry = StateEntry("a", "float32", (None, 2))
        >>> StateEntry.from_json(entry.to_json()) == entry
        True
        """
        fields = json.loads(text)
        shape = fields.pop("shape")
        return cls(shape=None if shape is None else tuple(shape), **fields)


class Manifest:
    """The manifest in a server's graph: a table of texts.

    Create it in the graph of a server.
    """

    def __init__(self) -> None:
        # TensorFlow has no hash table that maps strings to strings, so the keys are hashes.
        self.table = tf.raw_ops.MutableHashTableV2(
            key_dtype=tf.int64, value_dtype=tf.string, shared_name=_NAME
        )
        self._keys = tf.compat.v1.placeholder(tf.int64, [None])
        self._texts = tf.compat.v1.placeholder(tf.string, [None])
        self.insert = tf.raw_ops.LookupTableInsertV2(
            table_handle=self.table, keys=self._keys, values=self._texts
        )
        exported = tf.raw_ops.LookupTableExportV2(
            table_handle=self.table, Tkeys=tf.int64, Tvalues=tf.string
        )
        self.texts = exported.values

    def size(self) -> tf.Tensor:
        """Returns the number of entries, int64."""
        return tf.raw_ops.LookupTableSizeV2(table_handle=self.table)

    def feeds(self, entries: Iterable[StateEntry]) -> dict[tf.Tensor, np.ndarray]:
        """Returns the values of the placeholders of `insert`."""
        texts = {_hash(entry.name): entry.to_json() for entry in entries}
        keys = np.array(list(texts), np.int64)
        return {self._keys: keys, self._texts: np.array(list(texts.values()), object)}


class Registration:
    """Finds what is added to the graph of a connection, and writes it into the server's manifest.

    Create it in the graph.

    Args:
      graph: the graph.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._manifest = Manifest()
        self.insert = self._manifest.insert
        self._entries: list[StateEntry] = []
        self._version = self._searched = 0
        # The restarts of the server, and how many of the entries it has got since the last one.
        self._registered = (0, 0)

    def search(self) -> None:
        """Searches what was added to the graph, while no thread is adding to it."""
        if self._graph.version == self._version:
            return
        self._version, operations = self._graph.version, self._graph.get_operations()
        new = operations[self._searched :]
        self._entries += entries_of(new, marks_in(self._graph))
        self._searched = len(operations)

    def is_complete(self, restarts: int) -> bool:
        """Returns whether the server has got all entries.

        Args:
          restarts: the number of the server's restarts. A restarted server may lack entries that
            it had got after its last save.
        """
        return self._registered == (restarts, len(self._entries))

    def send(self, run: Callable[[dict[tf.Tensor, np.ndarray]], object], restarts: int) -> None:
        """Sends the server what it lacks.

        Args:
          run: runs `insert` with values of its placeholders.
          restarts: the number of the server's restarts.
        """
        count = len(self._entries)
        first = self._registered[1] if self._registered[0] == restarts else 0
        if first < count:
            run(self._manifest.feeds(self._entries[first:count]))
        self._registered = (restarts, count)


def entries_of(
    operations: Iterable[tf.Operation], marks: Mapping[str, RestartMark]
) -> list[StateEntry]:
    """Returns descriptions of the variables and tables whose handles are among operations."""
    entries = (_entry_of(operation, marks) for operation in operations)
    return [entry for entry in entries if entry is not None and _is_saved(entry.name)]


def _entry_of(operation: tf.Operation, marks: Mapping[str, RestartMark]) -> StateEntry | None:
    if operation.type == _VARIABLE:
        name, shape = name_of(operation), tf.TensorShape(operation.get_attr("shape"))
        return StateEntry(
            name,
            tf.as_dtype(operation.get_attr("dtype")).name,
            None if shape.rank is None else tuple(shape.as_list()),
            **marks.get(name, RestartMark())._asdict(),
        )
    if operation.type == _TABLE:
        key, value = (
            tf.as_dtype(operation.get_attr(f"{each}_dtype")).name for each in ("key", "value")
        )
        return StateEntry(name_of(operation), value, key_dtype=key)
    return None


def _is_saved(name: str) -> bool:
    return not name.startswith(_NOT_SAVED) and not name.endswith(CHANGE)


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little", signed=True)
