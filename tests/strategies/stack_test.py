"""The stack of a thread, told by another one."""

import threading

import pytest

from strategies.collectives.health.stack import stack_of

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


def test_a_stack_is_told_again_and_again_while_it_changes():
    ended = threading.Event()

    def deep(calls):
        return deep(calls - 1) if calls else sum(number for number in range(9))

    def run():
        while not ended.is_set():
            deep(30)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        depths = {len(stack_of(thread.ident)) for _ in range(300)}
    finally:
        ended.set()
        thread.join()
    assert max(depths) > 5
