"""Checks that all workers make the same call before they exchange anything."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.collectives.base import Collectives
from strategies.compat.tensorflow import replica_specs
from strategies.diagnostics.calls import record_call

_BYTES = 256
_MESSAGE_BYTES = 1024


def check_same_call(collectives: Collectives, operation: str, detail: str = "") -> None:
    """Checks that all workers are in the same operation with the same details; waits for all.

    The check costs one small exchange. It does nothing while a `tf.function` is traced, because
    workers trace at different times.

    >>> from strategies.collectives.base import LocalCollectives
    >>> check_same_call(LocalCollectives(), "barrier")

    Args:
      collectives: the workers.
      operation: what this worker is about to do.
      detail: a value that must be the same on all workers, such as the number of steps.

    Raises:
      ValueError: if the workers' operations or details differ; raised on all workers.
    """
    if collectives.size == 1 or not tf.executing_eagerly():
        return
    record_call()  # the watchdog reports the call in which a worker waits here
    text = f"{operation}: {detail}" if detail else operation
    sent = text.encode()[:_BYTES].ljust(_BYTES)
    received = collectives.all_gather(tf.constant([list(sent)], tf.uint8)).numpy()
    calls = [bytes(each).decode(errors="replace").strip() for each in received]
    if len(set(calls)) > 1:
        by_worker = "; ".join(f"worker {rank}: {text}" for rank, text in enumerate(calls))
        raise ValueError(
            "All workers must make the same calls in the same order, with the same numbers of "
            f"examples and steps. Received: {by_worker}. Create the same model on all workers. "
            "Pass them the same data, or shard it with strategies.read_files or "
            "AutoShardPolicy.OFF, which pad uneven shards; call fit, evaluate, predict, reduce, "
            "gather and save on all of them."
        )


def raise_on_all(collectives: Collectives, what: str, error: Exception | None) -> None:
    """Raises an error on all workers if one of them failed; waits for all.

    >>> from strategies.collectives.base import LocalCollectives
    >>> raise_on_all(LocalCollectives(), "Saving rows", None)

    Args:
      collectives: the workers.
      what: the action that was attempted, for the message.
      error: the error of this worker; None if it succeeded.

    Raises:
      Exception: `error` itself, on a worker that failed.
      RuntimeError: on the other workers; the message has the error of the first one that failed.
    """
    if collectives.size > 1:
        text = "" if error is None else f"{type(error).__name__}: {error}"
        sent = text.encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES)
        received = collectives.all_gather(tf.constant([list(sent)], tf.uint8)).numpy()
        texts = [bytes(each).decode(errors="replace").strip() for each in received]
        if error is None and any(texts):
            rank = next(rank for rank, text in enumerate(texts) if text)
            raise RuntimeError(
                f"{what} must succeed on all workers. Received: an error on worker {rank}: "
                f"{texts[rank]}"
            )
    if error is not None:
        raise error


def spec_text(spec: Any) -> str:
    """Returns a description of the dtypes and ranks of a dataset's components.

    >>> spec_text((tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64)))
    'float32 of rank 2, int64 of rank 1'
    """
    texts = []
    for leaf in tf.nest.flatten(spec):
        leaf = replica_specs(leaf)[0]
        dtype = getattr(getattr(leaf, "dtype", None), "name", type(leaf).__name__)
        rank = getattr(getattr(leaf, "shape", None), "rank", None)
        texts.append(dtype if rank is None else f"{dtype} of rank {rank}")
    return ", ".join(texts)
