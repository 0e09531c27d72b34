"""Google's Vertex AI: the replicas of a custom job's worker pools.

Variables: cloud.google.com/vertex-ai/docs/training/distributed-training, "Cluster variables".
CLUSTER_SPEC is read before Vertex AI's TF_CONFIG, which has the evaluator in the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tf_config.cluster import TFConfig
from tf_config.environments.environment import Variables
from tf_config.errors import ClusterConfigError, quoted

VARIABLE = "CLUSTER_SPEC"
# By the position of a pool in `workerPoolSpecs`.
_TYPES = {
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}


def is_there(environ: Mapping[str, str]) -> bool:
    """Returns whether the variable is Vertex AI's, for its name is that of other things, too.

    >>> is_there({"CLUSTER_SPEC": "/etc/cluster.yaml"})
    False
    """
    return '"workerpool0"' in environ.get(VARIABLE, "")


def read(variables: Variables) -> TFConfig:
    """Returns the cluster of all replicas: a chief, and workers, ps and an evaluator if any.

    The first pool alone is a worker.
    """
    text = variables.text(VARIABLE)
    try:
        given = json.loads(text)
        pools, task = given["cluster"], given["task"]
        names = _TYPES if len(pools) > 1 else {"workerpool0": "worker"}
        cluster = {names[pool]: addresses for pool, addresses in pools.items()}
        cluster.pop("evaluator", None)  # it is no part of a cluster of TensorFlow's
        own: dict[str, Any] = {"type": names[task["type"]], "index": task["index"]}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ClusterConfigError(
            f"{VARIABLE} must have the worker pools of Vertex AI in 'cluster', {', '.join(_TYPES)}"
            f", and one of their replicas in 'task'. Received: {quoted(text)}. Leave it as Vertex "
            "AI sets it."
        ) from None
    return TFConfig.from_json(json.dumps({"cluster": cluster, "task": own}))
