"""Detects Keras callbacks with which several workers on one host would write the same file.

Keras 3 does not distinguish workers: a `ModelCheckpoint` passed to `fit` on all workers makes all
of them write the file, which may then consist of parts of several versions, without any error.

A process claims a path by binding a socket to an abstract name, which the kernel gives to one
process of a host at a time and frees when the process ends, even if it is killed. Nobody can
connect to the socket, and no lock file is left behind.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import threading
import weakref
from typing import Any

from strategies.compat.keras import callbacks_of_running_fit

# Callbacks that write over a file or directory, and the attribute that has its path.
_PATHS = {
    "ModelCheckpoint": "filepath",
    "BackupAndRestore": "backup_dir",
    "CSVLogger": "filename",
    "OrbaxCheckpoint": "directory",
    "SaveBestEpoch": "filepath",  # KerasTuner's own, for a trial's best weights
}
_LIBRARIES = ("keras", "tf_keras", "keras_tuner")
# The callbacks that let only the strategy's chief write.
_AWARE_OF_WORKERS = (
    ("tf_keras", "ModelCheckpoint"),
    ("tf_keras", "BackupAndRestore"),
    ("keras_tuner", "SaveBestEpoch"),
)
_REMEDY = (
    "Wrap the callback, strategies.callbacks.on_first_worker(callback, strategy), or give each "
    "worker its own path, strategies.own_path(path, strategy)."
)
# A user can neither wrap the callback of a tuner nor set its path.
_REMEDIES = {
    "keras_tuner": "Give each worker's tuner its own directory, "
    "directory=strategies.own_path('tuner', strategy)."
}

_claims: dict[str, tuple[socket.socket, dict[int, weakref.finalize[..., Any]]]] = {}
_lock = threading.RLock()  # a callback may be deleted at any moment, in the same thread


def check_sole_writer(in_step: bool) -> None:
    """Checks that no other process on this host writes the files of the running `fit`'s callbacks.

    Args:
      in_step: whether the workers take all steps together.

    Raises:
      ValueError: if another process has a callback for the same file.
    """
    for callback in callbacks_of_running_fit():
        for base in type(callback).__mro__:
            library = base.__module__.partition(".")[0]
            if library not in _LIBRARIES or base.__name__ not in _PATHS:
                continue
            if in_step and (library, base.__name__) in _AWARE_OF_WORKERS:
                continue
            path = os.fspath(getattr(callback, _PATHS[base.__name__]))
            if not claim(path, callback):
                raise ValueError(
                    "Two processes cannot write the same file. Received: "
                    f"{type(callback).__name__} with {path!r}, which another process on this host "
                    f"(such as another worker) also writes. {_REMEDIES.get(library, _REMEDY)}"
                )


def claim(path: str, holder: object) -> bool:
    """Claims a path for this process until `holder` is deleted; returns whether it succeeded.

    It also succeeds if this process has already claimed the path.

    >>> class Writer:
    ...     pass
    >>> writer = Writer()
    >>> claim("best.keras", writer), claim("best.keras", Writer())
    (True, True)

    Args:
      path: the path of a file or directory on this host. Claiming a remote path always succeeds.
      holder: the object that writes it.
    """
    if "://" in path:
        return True
    name = f"\0keras-strategies-{hashlib.sha256(os.path.realpath(path).encode()).hexdigest()}"
    with _lock:
        if name not in _claims:
            claimed = socket.socket(socket.AF_UNIX)
            try:
                claimed.bind(name)
            except OSError as error:
                claimed.close()
                return error.errno != errno.EADDRINUSE
            _claims[name] = claimed, {}
        holders = _claims[name][1]
        if id(holder) not in holders:
            holders[id(holder)] = weakref.finalize(holder, _release, name, id(holder))
    return True


def _release(name: str, holder: int) -> None:
    with _lock:
        claimed, holders = _claims[name]
        del holders[holder]
        if not holders:
            del _claims[name]
            claimed.close()
