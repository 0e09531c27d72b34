"""Deletion of `tf.data` iterators in the background.

To delete an iterator, TensorFlow wakes the thread that tunes its dataset before it marks the
iterator as cancelled. If that thread looks too early, it sleeps until its next round, for up to a
minute, and whoever deletes the iterator waits. This happens to about one iterator in twenty
(TensorFlow 2.21), and if workers train in step, all of them wait at the end of that epoch.
"""

from __future__ import annotations

import _thread
import weakref

import tensorflow as tf


def delete_in_background(iterator: tf.data.Iterator, owner: object) -> None:
    """Deletes an iterator in a thread of its own, once its owner has been deleted.

    Args:
      iterator: the iterator. Only the owner refers to it, and it does not refer to the owner.
      owner: the object that uses the iterator.
    """
    # Not a `threading.Thread`: it takes locks to start, and the garbage collector may have
    # interrupted a program that holds them.
    finalizer = weakref.finalize(owner, _thread.start_new_thread, [iterator].clear, ())
    finalizer.atexit = False
