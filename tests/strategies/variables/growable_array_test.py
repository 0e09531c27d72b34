"""Arrays that grow; what they hold is tested with the tables that use them."""

import os
import subprocess
import sys

import pytest

MANY = """
import tensorflow as tf
from strategies.variables.growable_array import GrowableArray

arrays = [GrowableArray((16,), tf.float32, 0.0) for _ in range(40)]
for array in arrays:
    array.resize(tf.constant(300_000, tf.int64))
print("grown")
"""


@pytest.mark.slow
def test_many_arrays_of_unknown_size_do_not_reserve_more_than_the_memory():
    # oneDNN's allocator refuses to reserve more, even if nothing is written there.
    environ = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"}
    command = [sys.executable, "-c", MANY]
    found = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert found.stdout == "grown\n", found.stderr
