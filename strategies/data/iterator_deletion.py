"""Deletion of `tf.data` iterators in the background.

To delete an iterator, TensorFlow wakes the thread that tunes its dataset, and only then marks the
iterator as cancelled. If the thread checks too early, it sleeps until its next round, for up to a
minute, and the deletion blocks. This happens to about one iterator in twenty (TensorFlow 2.21); if
workers train in step, all of them then wait at the end of the epoch.
"""

from __future__ import annotations

import _thread
import atexit
import os
import time
import weakref
from collections.abc import Callable

import tensorflow as tf

from strategies.utils.background_thread import is_ending_by_error

_SECONDS_TO_END = 70.0  # the tuning sleeps for up to 60
_running: set[_thread.LockType] = set()  # held by the threads that delete
_has_ended: list[bool] = []


def delete_in_background(iterator: tf.data.Iterator, owner: object) -> None:
    """Deletes an iterator in a thread of its own, once its owner has been deleted.

    When the process ends, it waits for these threads for as long as TensorFlow's tuning may take;
    if an error ends it, it does not wait.

    Args:
      iterator: the iterator. Only the owner may refer to it, and it must not refer to the owner.
      owner: the object that uses the iterator.
    """
    finalizer = weakref.finalize(owner, _begin, [iterator].clear)
    finalizer.atexit = False


def _begin(delete: Callable[[], None]) -> None:
    # The garbage collector may call this at any point of a program. So nothing here may take a lock
    # that the program may hold; starting a `threading.Thread` would.
    if _has_ended:
        delete()
        return
    lock = _thread.allocate_lock()
    lock.acquire()
    _running.add(lock)
    _thread.start_new_thread(_delete, (delete, lock))


def _delete(delete: Callable[[], None], lock: _thread.LockType) -> None:
    try:
        delete()
    finally:
        _running.discard(lock)
        lock.release()


def _wait_at_exit() -> None:
    # See [Note: the end of the interpreter] in utils/background_thread.py.
    _has_ended.append(True)
    # An error, such as that of a lost worker, must end the process now: others wait for its end. If
    # a thread returns from TensorFlow in just that moment, the error ends the process anyway.
    if is_ending_by_error():
        return
    end = time.monotonic() + _SECONDS_TO_END
    for lock in tuple(_running):
        lock.acquire(timeout=max(end - time.monotonic(), 0))


atexit.register(_wait_at_exit)
os.register_at_fork(after_in_child=_running.clear)
