"""The line that a job prints at its start: the strategy, the workers and how they communicate."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives import Collectives


def announce(
    strategy: tf.distribute.Strategy, workers: Collectives, devices: Sequence[str], choice: str
) -> None:
    """Prints a job's strategy, workers, replicas and communication, on the first worker only.

    The line goes to standard error, because standard output belongs to the script.

    Args:
      strategy: the strategy that was created.
      workers: the collectives of all workers.
      devices: the devices of this worker.
      choice: how the workers communicate, and why.
    """
    if workers.rank:
        return
    device = "GPU" if "GPU" in devices[0] else "CPU"
    replicas = f"{len(devices)} {'replica' if len(devices) == 1 else 'replicas'} ({device})"
    each = f"{workers.size} {'worker' if workers.size == 1 else 'workers'} x {replicas}"
    print(f"strategies: {type(strategy).__name__}, {each}; {choice}", file=sys.stderr, flush=True)
