"""Background threads end, and keep nothing alive."""

import gc
import threading
import weakref

from strategies.utils.background_thread import BackgroundTask, StoppedError


class Copy:
    """Stands for a copy of a model's variables."""


def test_a_task_that_is_done_keeps_nothing_that_it_captured():
    copy = Copy()
    reference = weakref.ref(copy)
    task = BackgroundTask(lambda check, copy=copy: None, "test")
    del copy
    task.wait()
    task.stop()
    gc.collect()
    assert reference() is None and task.is_done


def test_an_error_is_kept():
    def fail(check):
        raise OSError("full")

    task = BackgroundTask(fail, "test")
    task.wait()
    assert str(task.error) == "full"


def test_a_task_that_is_stopped_ends_at_its_next_check():
    begun = threading.Event()

    def work(check):
        while True:
            begun.set()
            check()

    task = BackgroundTask(work, "test")
    begun.wait()
    task.stop()
    assert task.is_done and isinstance(task.error, StoppedError)
