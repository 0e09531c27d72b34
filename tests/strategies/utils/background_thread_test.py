"""Background threads end, and keep nothing alive."""

import gc
import os
import sys
import threading
import weakref

import pytest

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


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux")
def test_a_lower_priority_is_that_of_the_thread_alone():
    found = []
    before = os.getpriority(os.PRIO_PROCESS, 0)
    task = BackgroundTask(
        lambda _: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())),
        "example",
        niceness=1,
    )
    task.wait()
    assert task.error is None
    assert found == [min(before + 1, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
