"""Keeps values in a step's logs that are already merged over the replicas from being summed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.compat.keras import tensorflow_variable
from strategies.compat.keras_steps import is_summing_logs, metrics_of_own_step
from strategies.compat.tensorflow import MirroredVariable, SyncOnReadVariable
from strategies.core.metric_logs import with_merged_metrics
from strategies.variables.merged import EagerMerged, is_merged


class MergedLogs:
    """Finds the merged values among the logs that a step of tf_keras returns.

    tf_keras sums the results of `train_step` and `test_step` over all replicas, because each
    replica returns its share of the loss. But the result of a metric already covers all replicas,
    so its sum is wrong. tf_keras corrects this only if all keys of the logs are names of metrics,
    and only at the end of an epoch. Keras 3 takes the mean.

    Args:
      collectives: the collectives of the workers.
      replicas: the number of replicas of this worker.
    """

    def __init__(self, collectives: Collectives, replicas: int):
        self._collectives = collectives
        self._replicas = replicas
        self._merged: list[Any] = []

    def run(self, fn: Callable[..., Any], call: Callable[[Callable[..., Any]], Any]) -> Any:
        """Returns the results of `call(fn)`, which runs a step, with each merged value once.

        Args:
          fn: the function passed to `strategy.run`. If it is not a step of tf_keras, it is only
            called; for Keras 3, see `with_merged_metrics`.
          call: runs a function on all replicas.
        """
        if not is_summing_logs(fn):
            results = call(fn)
            variables = [
                each
                for metric in metrics_of_own_step(fn, results)
                for each in map(tensorflow_variable, metric.variables)
                if isinstance(each, SyncOnReadVariable)
            ]
            return with_merged_metrics(results, variables, self._replicas, self._collectives)
        self._merged = []
        if not tf.executing_eagerly():
            return tf.nest.map_structure(self._once_in_graph, call(fn))
        # Flags of the results, by thread; each replica has its own thread.
        lock, merged = threading.Lock(), {}
        caller = EagerMerged()

        def call_recorded(*args: Any, **kwargs: Any) -> Any:
            eager = EagerMerged(caller)
            with eager.recording():
                results = fn(*args, **kwargs)
            follows = [eager.follows(each) for each in tf.nest.flatten(results)]
            with lock:
                merged[threading.get_ident()] = follows
            return results

        with caller.recording():
            results = call(call_recorded)
        # A value counts as merged if it is on all replicas.
        flags = map(all, zip(*merged.values(), strict=True))
        leaves = tf.nest.flatten(results)
        once = map(self._once_in_eager, leaves, flags)
        return tf.nest.pack_sequence_as(results, list(once))

    def is_merged(self, value: Any) -> bool:
        """Returns whether a value to be summed over the workers is already merged."""
        return any(value is each for each in self._merged)

    def _once_in_graph(self, leaf: Any) -> Any:
        if isinstance(leaf, MirroredVariable):
            return self._remember(tf.identity(leaf))
        values = _local_values(leaf)
        return self._remember(values[0]) if all(map(is_merged, values)) else leaf

    def _once_in_eager(self, leaf: Any, follows: bool) -> Any:
        if isinstance(leaf, MirroredVariable):
            return self._remember(tf.identity(leaf))
        values = _local_values(leaf)
        # Several replicas return the same tensor only if a merge call created it for all of them.
        if not follows and (len(values) == self._replicas or self._collectives.size == 1):
            return leaf
        # A value that also depends on something else than merged values may differ.
        stacked = tf.stack(values)
        gathered = self._collectives.all_gather(stacked) if self._collectives.size > 1 else stacked
        is_same = bool(tf.reduce_all(gathered == gathered[0]))
        return self._remember(values[0]) if is_same else leaf

    def _remember(self, value: Any) -> Any:
        self._merged.append(value)
        return value


def _local_values(leaf: Any) -> tuple[Any, ...]:
    return tuple(getattr(leaf, "values", (leaf,)))
