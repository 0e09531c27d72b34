"""Writing files on all workers: only the first worker's files are kept, atomically."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.workers import collectives_of, drain, refresh
from strategies.diagnostics.consistency import check_same_call


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], strategy: tf.distribute.Strategy) -> Iterator[str]:
    """Yields a path to write to on every worker; the first worker's file is moved to `path`.

    All workers must run the block, because saving may read variables that all workers aggregate
    (such as the metrics that tf_keras saves). The other workers' files are deleted. After the
    block, all workers that share the first worker's file system see the complete file: it is
    written next to its target and then moved. A previous file stays until then.

        with strategies.writing("model.keras", strategy) as path:
            model.save(path)

    Use it in the same way with `save_weights`, `export`, `tf.saved_model.save` (a directory) and
    `tf.train.Checkpoint.write` (several files whose names begin with the path).

    >>> strategy = tf.distribute.get_strategy()
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with writing(os.path.join(directory, "runs", "note.txt"), strategy) as path:
    ...         _ = tf.io.gfile.GFile(path, "w").write("done")
    ...     os.listdir(os.path.join(directory, "runs"))
    ['note.txt']

    Args:
      path: the target of the first worker's file; missing directories are created.
      strategy: the strategy of the workers.

    Raises:
      ValueError: if the first worker wrote nothing.
      RuntimeError: if another worker could not create or move its files. An error inside the block
        is raised on its worker alone; let it end the script, because the other workers wait.
    """
    target = os.path.abspath(path) if "://" not in os.fspath(path) else os.fspath(path)
    parent, base = os.path.split(target.rstrip("/"))
    drain(strategy)
    collectives = collectives_of(strategy)
    first = collectives.rank == 0
    above = parent if first else tempfile.gettempdir()
    own = os.path.join(above, f".{base}.{uuid.uuid4().hex}")
    try:
        _run_on_all(collectives, lambda: tf.io.gfile.makedirs(own))
        # All workers drained their updates before they came here, so none is missing in the file.
        refresh(strategy)
        yield os.path.join(own, base)
        _run_on_all(collectives, lambda: _move(own, parent, path) if first else None)
    finally:
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.rmtree(own)


def own_path(path: str | os.PathLike[str], strategy: tf.distribute.Strategy) -> str:
    """Returns `path` on the first worker, and a temporary path on the others.

    Use it for objects that write repeatedly and take their path when they are created:

        manager = tf.train.CheckpointManager(
            checkpoint, strategies.own_path("checkpoints", strategy), max_to_keep=3
        )
        manager.save()               # all workers
        strategies.barrier(strategy)
        checkpoint.restore(tf.train.latest_checkpoint("checkpoints"))

    >>> own_path("checkpoints", tf.distribute.get_strategy())
    'checkpoints'

    Args:
      path: the path of a file or directory.
      strategy: the strategy of the workers.
    """
    if collectives_of(strategy).rank == 0:
        return os.fspath(path)
    directory = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return os.path.join(directory, os.path.basename(os.fspath(path).rstrip("/")))


def _run_on_all(collectives: Collectives, action: Callable[[], None]) -> None:
    """Runs an action on all workers; if it fails on one of them, raises on all."""
    error = None
    try:
        action()
    except (OSError, ValueError, tf.errors.OpError) as raised:
        error = raised
    check_same_call(collectives, "writing")
    failed = collectives.all_gather(tf.constant([int(error is not None)])).numpy().tolist()
    if error is not None:
        raise error
    if any(failed):
        raise RuntimeError(
            f"Writing must succeed on all workers. Received: an error on worker {failed.index(1)}. "
            "See that worker's output."
        )


def _move(source: str, target: str, path: str | os.PathLike[str]) -> None:
    """Moves the contents of a directory to another one; replaces existing files."""
    # Readers look for a checkpoint's index, and for the file that names the latest checkpoint, so
    # these are moved last.
    names = sorted(tf.io.gfile.listdir(source), key=lambda name: (name == "checkpoint", name))
    if not names:
        raise ValueError(
            "The block must write to the path that it is given. Received: nothing written for "
            f"{path}. Use `with strategies.writing(...) as path: model.save(path)`."
        )
    for name in (name.rstrip("/") for name in names):
        place = os.path.join(target, name)
        if tf.io.gfile.isdir(place):
            # Renamed, because removing it takes longer, and the job may be killed meanwhile.
            tf.io.gfile.rename(place, os.path.join(source, f".{name}.before"))
        tf.io.gfile.rename(os.path.join(source, name), place, overwrite=True)
