"""Tests strategies/embedding/checkpoint/npy_stream.py where several threads read."""

import gc
import sys
import threading

import numpy as np
import pytest

from strategies.embedding.checkpoint import npy_stream


@pytest.fixture
def quick_switches():
    """Lets threads take turns, and the collector look, as often as Python can."""
    before = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(20, 5, 5)
    yield
    sys.setswitchinterval(before[0])
    gc.set_threshold(*before[1])


class Garbage:
    """Runs Python code, so that threads take turns, whenever the collector finds one."""

    def __init__(self):
        self.cycle = self

    def __del__(self):
        sum(range(20))


def test_threads_read_at_once(tmp_path, quick_switches):
    np.save(tmp_path / "ids.npy", np.arange(4))
    errors = []

    def read():
        try:
            for _ in range(1000):
                Garbage()
                npy_stream.load(tmp_path / "ids.npy", "r")
        except SystemError as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
