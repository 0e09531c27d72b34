"""What saving and exporting rows take of memory, in a process that does nothing else.

The peak of a process that has run other tests depends on what its allocator has kept of them: the
same export took from 0 to 111 MB.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

import strategies

ROWS, WIDTH = 200_000, 256
COPY = ROWS * WIDTH * 4
M_MMAP_THRESHOLD = -3  # mallopt(3)

# What is larger is returned to the system as soon as it is freed.
assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16) == 1


def resident(field):
    """Returns the bytes of this process that are in memory, now (VmRSS) or at the peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def added(function, *arguments):
    # Of the process: TensorFlow's allocator keeps statistics only where oneDNN is on.
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, proc(5)
    before = resident("VmRSS")
    function(*arguments)
    return resident("VmHWM") - before


layer = strategies.DistributedEmbedding(WIDTH)
for part in np.array_split(np.arange(ROWS), 10):
    layer(part, training=True)
assert added(np.ones, COPY // 4, np.float32) > 0.9 * COPY
for function in (layer.save_rows, layer.export_rows):
    taken = added(function, f"{sys.argv[1]}/{function.__name__}")
    print(function.__name__, taken, flush=True)
    assert taken < COPY / 2, f"{function.__name__}: {taken} bytes for rows of {COPY}"
