"""The stack of a thread, told by another one."""

import threading
import time

import pytest

from strategies.diagnostics.stack import stack_of

PROGRAM = """
def größer(begun, ended):
    begun.set()
    ended.wait()
"""


@pytest.mark.parametrize("filename", ["program.py", 'with "quotes".py', "Größe 大小 😀.py"])
def test_the_calls_that_another_thread_is_in(filename):
    names = {}
    exec(compile(PROGRAM, filename, "exec"), names)
    begun, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=names["größer"], args=(begun, ended))
    thread.start()
    begun.wait()
    try:
        own = [entry for entry in stack_of(thread.ident) if entry.filename == filename]
        assert own in ([(filename, 4, "größer")], [(filename, 3, "größer")])
        assert not any(entry.filename == filename for entry in stack_of(threading.get_ident()))
    finally:
        ended.set()
        thread.join()


class Kept:
    """Remembers which threads freed such objects."""

    freed_by = set()

    def __del__(self):
        self.freed_by.add(threading.get_ident())


def test_a_thread_that_is_looked_at_frees_what_is_in_its_frames_itself():
    """The one that looks would do it at any time, in TensorFlow, while Python shuts down."""
    ended = threading.Event()

    def numbers(kept):
        yield from range(5)

    def deep(calls, kept):
        return deep(calls - 1, Kept()) if calls else sum(numbers(kept))

    def run():
        while not ended.is_set():
            deep(30, Kept())

    thread = threading.Thread(target=run)
    thread.start()
    looks = deep_looks = 0
    until = time.monotonic() + 60
    try:
        # The threads take turns of milliseconds, so that most looks meet the same frames.
        while (looks < 10_000 or deep_looks < 100) and time.monotonic() < until:
            deep_looks += len(stack_of(thread.ident)) > 30
            looks += 1
    finally:
        ended.set()
        thread.join()
    assert deep_looks
    assert Kept.freed_by == {thread.ident}
