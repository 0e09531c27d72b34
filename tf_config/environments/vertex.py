"""Google Vertex AI: the replicas in the worker pools of a custom job.

Variables: cloud.google.com/vertex-ai/docs/training/distributed-training, "Cluster variables".
CLUSTER_SPEC is read in preference to Vertex AI's TF_CONFIG, whose cluster contains the evaluator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tf_config.cluster import TFConfig
from tf_config.environments.environment import Variables
from tf_config.errors import ClusterConfigError, quoted

VARIABLE = "CLUSTER_SPEC"
# The task type of each pool, in the order of `workerPoolSpecs`.
_TYPES = {
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}


def is_detected(environ: Mapping[str, str]) -> bool:
    """Returns whether Vertex AI set CLUSTER_SPEC, a name that other software also uses.

    >>> is_detected({"CLUSTER_SPEC": "/etc/cluster.yaml"})
    False
    """
    return '"workerpool0"' in environ.get(VARIABLE, "")


def read(variables: Variables) -> TFConfig:
    """Returns the cluster of all replicas: a chief, workers, and parameter servers.

    If the first pool is the only one, its replica is a worker.
    """
    text = variables.text(VARIABLE)
    try:
        values = json.loads(text)
        pools, task = values["cluster"], values["task"]
        names = _TYPES if len(pools) > 1 else {"workerpool0": "worker"}
        cluster = {names[pool]: addresses for pool, addresses in pools.items()}
        cluster.pop("evaluator", None)  # as in TensorFlow
        own: dict[str, Any] = {"type": names[task["type"]], "index": task["index"]}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ClusterConfigError(
            f"{VARIABLE} must have the worker pools of Vertex AI in 'cluster', {', '.join(_TYPES)}"
            f", and one of their replicas in 'task'. Received: {quoted(text)}. Do not change the "
            "variable, which Vertex AI sets."
        ) from None
    return TFConfig.from_json(json.dumps({"cluster": cluster, "task": own}))
