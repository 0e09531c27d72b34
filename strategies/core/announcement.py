"""One line at the start of a job that says what was chosen."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives import Collectives


def announce(
    strategy: tf.distribute.Strategy, workers: Collectives, devices: Sequence[str], choice: str
) -> None:
    """Prints on the first worker which strategy a job has, how many replicas, and what was chosen.

    It goes to standard error: what a script prints is its own.

    Args:
      strategy: that was made.
      workers: all of them.
      devices: this worker's.
      choice: what was chosen, and why.
    """
    if workers.rank:
        return
    device = "GPU" if "GPU" in devices[0] else "CPU"
    replicas = f"{len(devices)} {'replica' if len(devices) == 1 else 'replicas'} ({device})"
    each = f"{workers.size} {'worker' if workers.size == 1 else 'workers'} x {replicas}"
    print(f"strategies: {type(strategy).__name__}, {each}; {choice}", file=sys.stderr, flush=True)
