"""Conversion between TensorFlow's cluster resolvers and TF_CONFIG."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_config import ClusterConfigError, ClusterSpec, Task, TFConfig

_Resolver = tf.distribute.cluster_resolver.ClusterResolver
_SimpleResolver = tf.distribute.cluster_resolver.SimpleClusterResolver


def config_of(resolver: Any) -> TFConfig | None:
    """Returns the validated TFConfig of a cluster resolver; None if it has no cluster.

    >>> config_of(_SimpleResolver(tf.train.ClusterSpec({"worker": ["a:1"]}), task_type="worker",
    ...                           task_id=0)).task
    Task(type='worker', index=0)

    Raises:
      ClusterConfigError: if it is not a resolver, its cluster is not valid, or it does not say
        which task this process is.
    """
    if not isinstance(resolver, _Resolver):
        raise ClusterConfigError(
            "cluster_resolver must be a tf.distribute.cluster_resolver.ClusterResolver. Received: "
            f"{resolver!r}. Omit it to use TF_CONFIG."
        )
    # Some resolvers know their task only after a call of cluster_spec.
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return None
    task_type, task_id = resolver.task_type, resolver.task_id
    if task_type is None or task_id is None:
        raise ClusterConfigError(
            "A cluster resolver must have a task_type and a task_id. Received: "
            f"task_type={task_type!r}, task_id={task_id!r}. Set both on the resolver."
        )
    return TFConfig(
        ClusterSpec.from_dict(jobs),
        Task(task_type, task_id),
        resolver.environment or None,
        resolver.rpc_layer or None,
    )


def resolver_of(config: TFConfig | None) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns the cluster resolver of a TFConfig; None stands for an empty cluster."""
    if config is None:
        return _SimpleResolver(tf.train.ClusterSpec({}))
    return _SimpleResolver(
        tf.train.ClusterSpec(config.cluster.to_dict()),
        task_type=config.task.type,
        task_id=config.task.index,
        environment=config.environment or "",
        rpc_layer=config.rpc_layer or "grpc",
    )
