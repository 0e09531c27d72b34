"""Kubernetes: the pods of Indexed Jobs or of a StatefulSet, behind a headless Service.

Kubernetes itself gives each pod its index and its name. Variables in the pod template, which
`tf-config render kubernetes` writes, give the numbers of tasks and the Service that publishes their
names. Hostnames: kubernetes.io, "Job with Pod-to-Pod Communication" and "StatefulSets". Kubeflow's
operator sets TF_CONFIG, which is read before these variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tf_config.address import Address
from tf_config.cluster import TASK_TYPES, ClusterSpec, Task, TFConfig
from tf_config.environments.environment import Variables
from tf_config.errors import ClusterConfigError, quoted
from tf_config.roles import Roles

SERVICE_VARIABLE = "KERAS_STRATEGIES_SERVICE"
MARKERS = (SERVICE_VARIABLE,)
TASKS_VARIABLE = "KERAS_STRATEGIES_TASKS"
TASK_TYPE_VARIABLE = "KERAS_STRATEGIES_TASK_TYPE"
PORT_VARIABLE = "KERAS_STRATEGIES_PORT"
DEFAULT_PORT = 2222
_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
_HOST_VARIABLE = "HOSTNAME"

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SERVICE = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_HOST = re.compile(rf"({_LABEL})-(0|[1-9][0-9]{{0,8}})")


def read(variables: Variables) -> TFConfig:
    """Returns the cluster of all pods, and the task of this pod."""
    service = variables.text(SERVICE_VARIABLE)
    if not _SERVICE.fullmatch(service):
        raise ClusterConfigError(
            f"{SERVICE_VARIABLE} must be the DNS name of a headless Service. Received: "
            f"{quoted(service)}. For example: 'train' or 'train.default.svc.cluster.local'."
        )
    roles = parse_tasks(variables.text(TASKS_VARIABLE))
    stem, index = _own_name(variables)
    task = Task(variables.find(TASK_TYPE_VARIABLE) or "worker", index)
    if task not in roles.tasks:
        raise ClusterConfigError(
            f"A pod must be one of the tasks that {TASKS_VARIABLE} counts. Received: {task} and "
            f"{quoted(format_tasks(roles))}. Correct {TASKS_VARIABLE}, {TASK_TYPE_VARIABLE} or the "
            "number of pods."
        )
    port = variables.number(PORT_VARIABLE) if variables.find(PORT_VARIABLE) else DEFAULT_PORT
    addresses = {
        other: Address.parse(f"{host}.{service}:{port}")
        for other, host in _hosts(stem, task, roles).items()
        if other.type != "evaluator"
    }
    return TFConfig(ClusterSpec(addresses), task)


def parse_tasks(text: str) -> Roles:
    """Returns the number of tasks of each type.

    >>> parse_tasks("worker=2,ps=1")
    Roles(workers=2, ps=1, chief=False, evaluator=False)

    Raises:
      ClusterConfigError: if `text` has another form, or these tasks cannot form a cluster.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in TASK_TYPES or name in counts or not re.fullmatch("[0-9]{1,5}", number):
            raise ClusterConfigError(
                f"{TASKS_VARIABLE} must have the number of tasks of each type, once per type. "
                f"Received: {quoted(text)}. For example: 'chief=1,worker=2,ps=1,evaluator=1'."
            )
        counts[name] = int(number)
    chiefs, evaluators = counts.get("chief", 0), counts.get("evaluator", 0)
    if chiefs > 1 or evaluators > 1:
        raise ClusterConfigError(
            "A job cannot have more than one chief or more than one evaluator. Received: "
            f"{TASKS_VARIABLE}={quoted(text)}. Make the others workers."
        )
    return Roles(counts.get("worker", 0), counts.get("ps", 0), bool(chiefs), bool(evaluators))


def format_tasks(roles: Roles) -> str:
    """Returns the number of tasks of each type as text for `parse_tasks`.

    >>> format_tasks(Roles(workers=2, chief=True))
    'chief=1,worker=2'
    """
    types = [task.type for task in roles.tasks]
    return ",".join(f"{name}={types.count(name)}" for name in TASK_TYPES if name in types)


def _own_name(variables: Variables) -> tuple[str, int]:
    """Returns this pod's host name in two parts: the part before the index, and the index."""
    name = variables.text(_HOST_VARIABLE)
    match = _HOST.fullmatch(name.split(".")[0])  # it may be the fully qualified name
    if match is None:
        raise ClusterConfigError(
            f"A pod's {_HOST_VARIABLE} must end with its index. Received: {quoted(name)}. Start "
            "the pods with an Indexed Job or a StatefulSet, which give them names such as "
            "'train-worker-0'."
        )
    index = int(match[2])
    if variables.find(_INDEX_VARIABLE) and variables.number(_INDEX_VARIABLE) != index:
        raise ClusterConfigError(
            f"{_INDEX_VARIABLE} must be the number at the end of {_HOST_VARIABLE}. Received: "
            f"{quoted(variables.find(_INDEX_VARIABLE))} and {quoted(name)}. Do not change these "
            "variables, which Kubernetes sets."
        )
    return match[1], index


def _hosts(stem: str, own: Task, roles: Roles) -> Mapping[Task, str]:
    """Returns the host name of each task's pod, derived from this pod's name."""
    if f"-{stem}".endswith(f"-{own.type}"):
        prefix = stem.removesuffix(own.type)
        return {task: f"{prefix}{task.type}-{task.index}" for task in roles.tasks}
    if {task.type for task in roles.tasks} != {own.type}:
        raise ClusterConfigError(
            "The name of a pod must end with its task's type and index, from which the names of "
            f"the other pods follow. Received: the host name '{stem}-{own.index}' of {own}. Name "
            f"the Job or StatefulSet 'train-{own.type}', for example, or start only tasks of this "
            "type."
        )
    return {task: f"{stem}-{task.index}" for task in roles.tasks}
