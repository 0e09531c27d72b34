"""The number of operations that TensorFlow runs at once."""

import os

import pytest
import tensorflow as tf

from strategies.utils.threads import inter_op_threads


@pytest.mark.parametrize(
    ("configured", "in_environment", "number"),
    [(3, "2", 3), (0, "2", 2), (0, "0", 4), (0, "many", 4), (0, "-1", 4), (0, None, 4)],
)
def test_inter_op_threads(monkeypatch, configured, in_environment, number):
    threading = tf.config.threading
    monkeypatch.setattr(threading, "get_inter_op_parallelism_threads", lambda: configured)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    monkeypatch.delenv("TF_NUM_INTEROP_THREADS", raising=False)
    if in_environment is not None:
        monkeypatch.setenv("TF_NUM_INTEROP_THREADS", in_environment)
    assert inter_op_threads() == number
