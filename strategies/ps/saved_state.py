"""The state that a parameter server has saved, its files, and how it is restored.

The files are for one job on one host: the name of their directory is derived from the job's secret,
and a server removes it when it starts for the first time and when it ends. A server that is killed
leaves it, for the process that takes its place. If there is none, because the whole job was killed,
another server that starts on the host an hour later or more removes the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from strategies.compat.tensorflow import Session
from strategies.files.atomic_files import read_json, write_json
from strategies.ps.manifest import Manifest, StateEntry
from strategies.utils.devices import HOST
from tf_config import Task
from tf_config.cluster import VARIABLE
from tf_config.secret import SECRET_VARIABLE

_LATEST, _DESCRIPTION, _STATES, _VALUES = "latest.json", "state.json", "workers.json", "values"
_PREFIX, _LOCK = "keras-strategies", "lock"
_ABANDONED_SECONDS = 3600.0


@dataclass(frozen=True)
class SavedState:
    """The state of a server at one moment.

    Attributes:
      folder: the folder of its files.
      entries: the variables and tables, in the order of the tensors in the files.
      time: when it was saved, in seconds since 1970.
    """

    folder: Path
    entries: Sequence[StateEntry]
    time: float

    @property
    def prefix(self) -> str:
        """The prefix of the names of the files of values, which TensorFlow writes and reads."""
        return str(self.folder / _VALUES)

    @property
    def dtypes(self) -> list[str]:
        """The dtypes of the tensors in the files."""
        return [dtype for entry in self.entries for dtype in entry.dtypes]

    def size(self) -> int:
        """Returns the size of the files in bytes."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


class SaveDirectory:
    """The directory of a server's saves, of which the last complete one is kept.

    Args:
      path: the path of the directory.

    Attributes:
      path: the path of the directory.
    """

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def of(cls, task: Task, environ: Mapping[str, str] = os.environ) -> SaveDirectory:
        """Returns the directory of a server, which no other job has."""
        values = [environ.get(name, "") for name in (SECRET_VARIABLE, VARIABLE)]
        digest = hashlib.sha256("\n".join(values).encode()).hexdigest()[:16]
        name = f"{_PREFIX}-{digest}-{task.type}-{task.index}"
        # Python reads the variable only once in a process.
        return cls(Path(environ.get("TMPDIR") or tempfile.gettempdir()) / name)

    def create(self) -> None:
        """Creates an empty directory, which other users cannot read.

        Raises:
          OSError: if it cannot be created.
        """
        self.remove()
        self.path.mkdir(mode=0o700)
        self.lock()
        for path in self.path.parent.glob(f"{_PREFIX}-*"):
            if path != self.path and _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)

    def lock(self) -> None:
        """Records that the directory is in use until this process ends.

        Raises:
          OSError: if the directory cannot be written to.
        """
        # Never closed, because closing the file would release it.
        fcntl.flock(os.open(self.path / _LOCK, os.O_WRONLY | os.O_CREAT), fcntl.LOCK_EX)

    def remove(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self.path, ignore_errors=True)

    def latest(self) -> SavedState | None:
        """Returns the last complete save; None if there is none.

        Raises:
          ValueError: if its description is damaged.
          OSError: if it cannot be read.
        """
        if not (self.path / _LATEST).exists():
            return None
        folder = self.path / read_json(self.path / _LATEST)["folder"]
        values = read_json(folder / _DESCRIPTION)
        entries = [StateEntry.from_json(text) for text in values["entries"]]
        return SavedState(folder, entries, values["time"])

    @contextlib.contextmanager
    def new_save(self, entries: Sequence[StateEntry]) -> Iterator[SavedState]:
        """Yields a new save, whose values the block writes; removes it unless it is published."""
        numbers = [int(folder.name) for folder in self._folders()]
        folder = self.path / f"{max(numbers, default=0) + 1:06d}"
        folder.mkdir()
        try:
            yield SavedState(folder, entries, time.time())
        finally:
            is_published = (self.path / _LATEST).exists() and (
                read_json(self.path / _LATEST)["folder"] == folder.name
            )
            if not is_published:
                shutil.rmtree(folder, ignore_errors=True)

    def publish(self, state: SavedState) -> None:
        """Makes a save whose values are written the last complete one; removes the others."""
        texts = [entry.to_json() for entry in state.entries]
        write_json(state.folder / _DESCRIPTION, {"entries": texts, "time": state.time})
        write_json(self.path / _LATEST, {"folder": state.folder.name})
        for folder in self._folders():
            if folder != state.folder:
                shutil.rmtree(folder, ignore_errors=True)

    def write_worker_states(self, states: Sequence[int]) -> None:
        """Writes the states of the workers, which do not wait for the next save."""
        write_json(self.path / _STATES, {"states": list(states)})

    def worker_states(self) -> list[int]:
        """Returns the states of the workers that were written last; [] if there are none."""
        path = self.path / _STATES
        return list(read_json(path)["states"]) if path.exists() else []

    def _folders(self) -> list[Path]:
        return [path for path in self.path.iterdir() if path.is_dir()]


def _is_abandoned(path: Path) -> bool:
    """Returns whether a directory of saves was left long ago by a server that was killed."""
    try:
        if time.time() - path.stat().st_mtime < _ABANDONED_SECONDS:
            return False
        with (path / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # in use, another user's, or none of ours
        return False
    return True


def new_session(target: str, graph: tf.Graph) -> Session:
    """Returns a session for a graph that is used a few times only."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return Session(target, graph=graph, config=config)


def restore(target: str, state: SavedState) -> None:
    """Creates the variables and tables of a saved state on a server that has just started.

    Raises:
      tf.errors.OpError: if the files are damaged.
    """
    graph = tf.Graph()
    with graph.as_default(), tf.device(HOST):
        count = len(state.dtypes)
        tensors = iter(
            tf.raw_ops.RestoreV2(
                prefix=state.prefix,
                tensor_names=[str(number) for number in range(count)],
                shape_and_slices=[""] * count,
                dtypes=[tf.as_dtype(dtype) for dtype in state.dtypes],
            )
        )
        restored = [
            _restore(entry, [next(tensors) for _ in entry.dtypes]) for entry in state.entries
        ]
        manifest = Manifest()
    with contextlib.closing(new_session(target, graph)) as session:
        session.run(restored)
        session.run(manifest.insert, manifest.feeds(state.entries))


def _restore(entry: StateEntry, tensors: Sequence[tf.Tensor]) -> tf.Operation:
    if entry.is_table:
        keys, values = tensors
        return tf.raw_ops.LookupTableImportV2(table_handle=entry.handle(), keys=keys, values=values)
    (value,) = tensors
    if entry.advance:
        value += tf.constant(entry.advance, value.dtype)
    return tf.raw_ops.AssignVariableOp(resource=entry.handle(), value=value)
