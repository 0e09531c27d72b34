"""A line at the start of a job with its strategy and what was chosen."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives import Collectives


def announce(
    strategy: tf.distribute.Strategy, workers: Collectives, devices: Sequence[str], choice: str
) -> None:
    """Prints on the first worker a job's strategy, its workers and replicas, and what was chosen.

    The line goes to standard error, because standard output belongs to the script.

    Args:
      strategy: the strategy that was created.
      workers: the collectives of all workers.
      devices: the devices of this worker.
      choice: what else was chosen, and why.
    """
    if workers.rank:
        return
    device = "GPU" if "GPU" in devices[0] else "CPU"
    replicas = f"{len(devices)} {'replica' if len(devices) == 1 else 'replicas'} ({device})"
    each = f"{workers.size} {'worker' if workers.size == 1 else 'workers'} x {replicas}"
    print(f"strategies: {type(strategy).__name__}, {each}; {choice}", file=sys.stderr, flush=True)
