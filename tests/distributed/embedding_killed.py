"""A worker that is killed while rows are saved, and what is there afterwards.

embedding_killed.py DIRECTORY save FILES   the last worker dies when it has written so many files
embedding_killed.py DIRECTORY check        what was saved before is whole, and is saved over
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

import strategies
from strategies.collectives.workers import collectives_of
from strategies.embedding.checkpoint import npy_stream

directory, what = sys.argv[1], sys.argv[2]
strategy = strategies.from_tf_config()
everyone = collectives_of(strategy)
with strategy.scope():
    layer = strategies.DistributedEmbedding(2, name="table", embeddings_initializer="zeros")
    layer.build(None)
ids = np.arange(100)
good = np.stack([ids, -ids], 1).astype("float32")


def dies_after(files):
    """Lets this process be killed when it has closed so many files, `latest` being the last."""
    left = [files]

    def counted(write):
        def written(*arguments):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return write(*arguments)

        return written

    npy_stream._NpyFile.close = counted(npy_stream._NpyFile.close)
    Path.replace = counted(Path.replace)


if what == "save":
    layer.set_rows(ids, good)
    layer.save_rows(directory)
    strategies.barrier(strategy)
    files = int(sys.argv[3])
    # The first worker alone writes `latest`.
    if everyone.rank == (everyone.size - 1 if files < 4 else 0):
        dies_after(files)
    layer.set_rows(ids, 7 * good)
    layer.save_rows(directory)
    raise AssertionError("nobody was killed")
left_over = [each for each in Path(directory).iterdir() if each.is_dir()]
assert len(left_over) == 2, left_over
layer.load_rows(directory)
np.testing.assert_array_equal(layer(ids).numpy(), good)
strategies.barrier(strategy)
layer.set_rows(ids, 3 * good)
layer.save_rows(directory)
layer.set_rows(ids, good)
layer.load_rows(directory)
np.testing.assert_array_equal(layer(ids).numpy(), 3 * good)
print("passed")
