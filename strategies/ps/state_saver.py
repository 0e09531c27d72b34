"""Saves of a parameter server's state while workers train.

[Note: a save of a server]
All values are read in one call under the lock that is held during every change, so a save is the
server's state between two changes: weights, slot variables, counters, row logs and the sequence
numbers of the changes that it contains. TensorFlow's runtime writes the values itself, after it has
released the lock. None of them is fetched into Python, whose messages end at 2 GB.

Values that change as a whole are shared with the save until they change, and those of which rows
change are copied. So a save may take as much memory as the state, for as long as it is being
written, and changes wait for the time that the copying takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from strategies.ps.lock import Lock
from strategies.ps.manifest import Manifest, StateEntry
from strategies.ps.saved_state import SaveDirectory, new_session
from strategies.utils.devices import HOST

_POLL_SECONDS = 1.0
# After a save, this many times its duration must pass, so that saves take a twentieth of the time.
_PAUSE = 19.0
# The same for a save with new variables, without which the server cannot be restarted.
_PAUSE_IF_NEW = 2.0


class _Contents:
    """What workers have created on a server so far, and which variables have a value.

    Args:
      target: the target of a session with the server.
      entries: the entries of the manifest.
    """

    def __init__(self, target: str, entries: Sequence[StateEntry]):
        self.entries = entries
        graph = tf.Graph()
        with graph.as_default(), tf.device(HOST):
            manifest = Manifest()
            self._texts = manifest.texts
            self._size = manifest.size()
            self._flags = _are_initialized([entry for entry in entries if not entry.is_table])
        self._session = new_session(target, graph)

    def is_complete(self) -> bool:
        """Returns whether the entries are all entries of the manifest."""
        return int(self._session.run(self._size)) == len(self.entries)

    def all(self) -> list[StateEntry]:
        """Returns all entries of the manifest."""
        texts = self._session.run(self._texts).tolist()
        return sorted(map(StateEntry.from_json, texts), key=lambda entry: entry.name)

    def with_values(self) -> list[StateEntry]:
        """Returns the tables, and the variables that have a value."""
        flags = iter(self._session.run(self._flags).tolist())
        found = [entry for entry in self.entries if entry.is_table or next(flags)]
        # An array may have been initialized after the flag of its length was read.
        names = {entry.name for entry in found}
        return [entry for entry in found if entry.length is None or entry.length in names]

    def close(self) -> None:
        """Closes the session."""
        self._session.close()


class _SaveProgram:
    """The graph that saves a server's state.

    Args:
      target: the target of a session with the server.
      entries: all entries of the manifest.
      saved: those that have a value, and are saved.
    """

    def __init__(self, target: str, entries: Sequence[StateEntry], saved: Sequence[StateEntry]):
        self.entries, self.saved = tuple(entries), tuple(saved)
        saved_names = {entry.name for entry in saved}
        others = [entry for entry in entries if entry.name not in saved_names]
        graph = tf.Graph()
        with graph.as_default(), tf.device(HOST):
            handles = {entry.name: entry.handle() for entry in saved}
            manifest = Manifest()

            def read() -> list[tf.Tensor]:
                # If something was created or initialized since, the save would lack it, but not the
                # changes that came with it.
                is_whole = tf.equal(manifest.size(), len(entries)) & ~tf.reduce_any(
                    _are_initialized(others)
                )
                values = [value for entry in saved for value in _read(entry, handles)]
                return [is_whole, *values]

            _, (is_whole, *values) = Lock("changes").call(read, changes=False)
            self._prefix = tf.compat.v1.placeholder(tf.string, [])
            names = [str(number) for number in range(len(values))]
            write = tf.raw_ops.SaveV2(
                prefix=self._prefix,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=values,
            )
            with tf.control_dependencies([write]):
                self._is_whole = tf.identity(is_whole)
        self._session = new_session(target, graph)

    def run(self, prefix: str) -> bool:
        """Writes the values; returns whether nothing was created or initialized meanwhile."""
        return bool(self._session.run(self._is_whole, {self._prefix: prefix}))

    def close(self) -> None:
        """Closes the session."""
        self._session.close()


def _are_initialized(entries: Sequence[StateEntry]) -> tf.Tensor:
    handles = [entry.handle() for entry in entries if not entry.is_table]
    flags = [tf.raw_ops.VarIsInitializedOp(resource=handle) for handle in handles]
    return tf.stack(flags) if flags else tf.zeros([0], tf.bool)


def _read(entry: StateEntry, handles: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
    """Returns a variable's value, or a table's keys and values."""
    handle, dtype = handles[entry.name], tf.as_dtype(entry.dtype)
    if entry.key_dtype is not None:
        keys_and_values = tf.raw_ops.LookupTableExportV2(
            table_handle=handle, Tkeys=tf.as_dtype(entry.key_dtype), Tvalues=dtype
        )
        return [*keys_and_values]
    if entry.length is None:
        return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)]
    # Reading the variable would copy its reserved memory as well.
    length = tf.raw_ops.ReadVariableOp(resource=handles[entry.length], dtype=tf.int64)
    rows = tf.range(tf.cast(length, tf.int32))
    return [tf.raw_ops.ResourceGather(resource=handle, indices=rows, dtype=dtype)]


class StateSaver:
    """Saves a server's state regularly, in a thread.

    The first save is made as soon as workers have created variables, and further ones when they
    have created others. If workers run in step, they register nothing, and nothing is saved: they
    could not continue without the steps since the last save.

    Args:
      target: the target of a session with the server.
      directory: the directory of the saves.
      seconds: the time between two saves if nothing is created.
      on_first: called after the first complete save.
      warn: receives warnings.
    """

    def __init__(
        self,
        target: str,
        directory: SaveDirectory,
        seconds: float,
        on_first: Callable[[], None],
        warn: Callable[[str], None],
    ):
        self._target = target
        self._directory = directory
        self._seconds = seconds
        self._on_first = on_first
        self._warn = warn
        self._contents = _Contents(target, ())
        self._program: _SaveProgram | None = None
        self._next = 0.0
        # When the last save ended, and how long it took.
        self._ended = self._duration = 0.0
        self._last_warning = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="saves", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Makes the thread end after the save that it is making, whose files may be removed."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_SECONDS):
            try:
                self.save_if_due()
            except (OSError, tf.errors.OpError) as error:
                if not self._stopped.is_set():
                    self._handle(error)

    def save_if_due(self) -> bool:
        """Saves the state if it is time to; returns whether it was saved."""
        start = time.monotonic()
        if start < self._ended + _PAUSE_IF_NEW * self._duration:
            return False
        is_due = start >= max(self._next, self._ended + _PAUSE * self._duration)
        is_new = self._update_program()
        if self._program is None or not (is_new or is_due):
            return False
        try:
            return self._save(self._program)
        finally:
            self._ended = time.monotonic()
            self._duration = self._ended - start

    def _update_program(self) -> bool:
        """Builds the program anew if something was created or initialized; returns whether."""
        if not self._contents.is_complete():
            entries = self._contents.all()
            self._contents.close()
            self._contents = _Contents(self._target, entries)
        contents = tuple(self._contents.entries), tuple(self._contents.with_values())
        before = self._program
        if not contents[0] or (before is not None and (before.entries, before.saved) == contents):
            return False
        if before is not None:
            before.close()
        self._program = _SaveProgram(self._target, *contents)
        return True

    def _save(self, program: _SaveProgram) -> bool:
        try:
            with self._directory.new_save(program.saved) as state:
                # If not, the next round builds the program anew.
                is_whole = program.run(state.prefix)
                if is_whole:
                    self._directory.publish(state)
        finally:
            self._next = time.monotonic() + self._seconds
        if is_whole:
            if self._last_warning:
                self._last_warning = ""
                self._warn("The server's state is saved again.")
            self._on_first()
            self._on_first = lambda: None
        return is_whole

    def _handle(self, error: OSError | tf.errors.OpError) -> None:
        """Warns of a save that failed, once for each cause; training continues."""
        reason = str(error.strerror) if isinstance(error, OSError) else error.message
        # TensorFlow's messages begin with the name of the file, which is another one each time.
        reason = reason.splitlines()[0].rpartition("; ")[2]
        if reason != self._last_warning:
            self._last_warning = reason
            self._warn(
                "A server must be able to save its state, to restore it if it is restarted. "
                f"Received: {reason}, in {str(self._directory.path)!r}. Training continues, and "
                "the last save is intact. Free some space, or set TMPDIR to a directory with more."
            )
