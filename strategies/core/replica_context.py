"""The context of replicas that share a process: it keeps a replica's state in merge calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.compat.keras_replicas import keep_state_of_calls
from strategies.compat.tensorflow import (
    MirroredReplicaContext,
    autograph_artifact,
    convert_with_autograph,
)
from strategies.variables.merged import eager_merged


class SharingReplicaContext(MirroredReplicaContext):
    """Context of a replica that shares layers with others of its process.

    See [Note: replicas that share layers] in compat/keras_replicas.py, and `EagerMerged`.
    """

    def _merge_call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with keep_state_of_calls():
            result = super()._merge_call(_mark_results(fn), args, kwargs)
        if (eager := eager_merged()) is not None:
            eager.take_over(result)
        return result


def _mark_results(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that marks its results as merged, in eager mode; see `EagerMerged`."""
    if eager_merged() is None:
        return fn

    def call_marking(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        if (eager := eager_merged()) is not None:
            eager.mark_following(result)
        return result

    return call_marking


def in_sharing_context(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that replicas run, each in a `SharingReplicaContext`."""
    fn = fn if tf.executing_eagerly() else convert_with_autograph(fn)

    def call_in_context(*args: Any, **kwargs: Any) -> Any:
        context = tf.distribute.get_replica_context()
        replica = int(tf.get_static_value(context.replica_id_in_sync_group))
        with SharingReplicaContext(context.strategy, replica):
            return fn(*args, **kwargs)

    return autograph_artifact(call_in_context)
