"""Backups that are either complete or absent, whenever the worker that writes them is killed."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strategies.compat.keras import BACKUP_PATHS
from strategies.files.atomic_files import flush_to_disk


def replace_backups_atomically(callback: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `hook` of a `BackupAndRestore`, changed to replace the last backup atomically.

    Keras 3 overwrites its last backup. A worker that is killed meanwhile leaves a partial one,
    which cannot be restored. The copy that `double_checkpoint` keeps does not help: Keras falls
    back to it for an `OSError` only, and a partial file raises other errors, too. Here the new
    files are as described in [Note: complete or absent] in files/atomic_files.py.

    Hooks of other callbacks, and of backups in remote storage, are returned unchanged.
    """
    if not all(hasattr(callback, attribute) for attribute in BACKUP_PATHS):
        return hook
    is_of_epochs = getattr(hook, "__name__", "") == "on_epoch_end"
    if not is_of_epochs and getattr(callback, "save_freq", None) == "epoch":
        return hook  # it saves nothing, and looking for files in each step takes time
    last = {attribute: str(getattr(callback, attribute)) for attribute in BACKUP_PATHS}
    if any("://" in path for path in last.values()):  # an object appears once it is complete
        return hook
    new = {attribute: _unfinished(path) for attribute, path in last.items()}

    def replace_backup(*args: Any, **kwargs: Any) -> None:
        for path in new.values():  # left by a worker that was killed
            Path(path).unlink(missing_ok=True)
        try:
            vars(callback).update(new)
            hook(*args, **kwargs)
        finally:
            vars(callback).update(last)
        for attribute in BACKUP_PATHS:
            if os.path.exists(new[attribute]):
                _replace(
                    last[attribute],
                    new[attribute],
                    bool(getattr(callback, "double_checkpoint", False)),
                )

    return functools.wraps(hook)(replace_backup)


def _unfinished(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f"unfinished.{name}")


def _replace(last: str, new: str, double: bool) -> None:
    if double and os.path.exists(last):
        shutil.copyfile(last, f"{last}.bkp")
    with open(new, "rb") as file:
        os.fsync(file.fileno())
    os.replace(new, last)
    flush_to_disk(Path(last).parent)
