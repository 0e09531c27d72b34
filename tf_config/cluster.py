"""Tasks, the cluster that they form, and TF_CONFIG, which describes both to one of the tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tf_config.address import Address
from tf_config.errors import ClusterConfigError, quoted, suggestion

TASK_TYPES = ("chief", "worker", "ps", "evaluator")
_NUMBERED = ("worker", "ps")
VARIABLE = "TF_CONFIG"
_EXAMPLE = (
    '{"cluster": {"worker": ["node1:2222", "node2:2222"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class Task:
    """One process of a cluster, such as worker 1; validated on construction.

    >>> str(Task("worker", 1))
    'worker 1'

    Attributes:
      type: one of `chief`, `worker`, `ps` and `evaluator`.
      index: the task's index among the tasks of its type, from 0.
    """

    type: str
    index: int

    def __post_init__(self) -> None:
        _check_type(self.type)
        if not isinstance(self.index, int) or isinstance(self.index, bool) or self.index < 0:
            raise ClusterConfigError(
                f"A task's index must be an integer >= 0. Received: {quoted(self.index)}. "
                "Number the tasks of a type 0, 1, 2, ..."
            )

    @classmethod
    def parse(cls, text: str) -> Task:
        """Returns the task given as `worker:1` or `worker 1`; `chief` alone is chief 0.

        Raises:
          ClusterConfigError: if `text` is anything else.
        """
        task_type, colon, index = text.replace(" ", ":", 1).partition(":")
        if not colon and task_type in _NUMBERED:
            raise ClusterConfigError(
                f"A worker or ps task must be given with its index. Received: {quoted(text)}. For "
                f"example: '{text}:0'."
            )
        return cls(task_type, _parse_index(index if colon else "0"))

    def __str__(self) -> str:
        return f"{self.type} {self.index}"

    @property
    def label(self) -> str:
        """The task's name for files, without a space: `worker-1`."""
        return f"{self.type}-{self.index}"


@dataclass(frozen=True)
class ClusterSpec:
    """The addresses of all tasks that train together, validated on construction.

    The indices of a job's tasks need not be consecutive: TensorFlow's sparse form contains only the
    tasks that this task communicates with.

    >>> spec = ClusterSpec.from_dict({"worker": ["node1:2222", "node2:2222"]})
    >>> [str(task) for task in spec.training_tasks]
    ['worker 0', 'worker 1']
    >>> str(spec.addresses[Task("worker", 1)])
    'node2:2222'

    Attributes:
      addresses: the address of each task: the chief, then the workers, then the parameter servers.
    """

    addresses: Mapping[Task, Address]

    def __post_init__(self) -> None:
        addresses = dict(self.addresses)
        _check_jobs(addresses)
        _check_endpoints(addresses)
        ordered = sorted(addresses, key=lambda task: (TASK_TYPES.index(task.type), task.index))
        frozen = MappingProxyType({task: addresses[task] for task in ordered})
        object.__setattr__(self, "addresses", frozen)

    def __hash__(self) -> int:
        return hash(tuple(self.addresses.items()))

    @classmethod
    def from_dict(cls, jobs: object) -> ClusterSpec:
        """Returns the cluster that TF_CONFIG's `cluster` value describes.

        Args:
          jobs: a dictionary from job names to lists of addresses, or to dictionaries from index to
            address.

        Raises:
          ClusterConfigError: if the value is invalid.
        """
        if not isinstance(jobs, Mapping) or not jobs:
            raise ClusterConfigError(
                f"'cluster' must map job names to addresses. Received: {quoted(jobs)}. Write for "
                f"example {_EXAMPLE}, or unset {VARIABLE} to run as one process."
            )
        addresses: dict[Task, Address] = {}
        for job, members in jobs.items():
            _check_type(job)
            for index, address in _members(job, members):
                task = Task(job, index)
                if task in addresses:
                    raise ClusterConfigError(
                        f"A task cannot have two addresses. Received: two for {task}. Remove one "
                        "of them."
                    )
                addresses[task] = Address.parse(address)
        return cls(addresses)

    def to_dict(self) -> dict[str, Any]:
        """Returns TF_CONFIG's `cluster` value: lists, or the sparse form for indices with gaps."""
        jobs: dict[str, dict[int, str]] = {}
        for task, address in self.addresses.items():
            jobs.setdefault(task.type, {})[task.index] = str(address)
        return {
            job: list(members.values()) if list(members) == list(range(len(members))) else members
            for job, members in jobs.items()
        }

    def tasks(self, task_type: str) -> tuple[Task, ...]:
        """Returns the tasks of one type, ordered by index."""
        return tuple(task for task in self.addresses if task.type == task_type)

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """The tasks that train, in the order of their ranks: the chief, then the workers."""
        return self.tasks("chief") + self.tasks("worker")


@dataclass(frozen=True)
class TFConfig:
    """One task's TF_CONFIG: the cluster and this task; validated on construction.

    >>> config = TFConfig.from_json(
    ...     '{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": "0"}}'
    ... )
    >>> config.to_json()
    '{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}'

    Attributes:
      cluster: all tasks that train together.
      task: this task. An evaluator is not in `cluster`, as in TensorFlow.
      environment: TF_CONFIG's `environment` (Kubeflow writes `cloud`), or None.
      rpc_layer: TF_CONFIG's `rpc_layer`, or None for TensorFlow's default, `grpc`.
    """

    cluster: ClusterSpec
    task: Task
    environment: str | None = None
    rpc_layer: str | None = None

    def __post_init__(self) -> None:
        if self.task.type != "evaluator" and self.task not in self.cluster.addresses:
            known = ", ".join(str(task) for task in self.cluster.tasks(self.task.type)) or "none"
            raise ClusterConfigError(
                f"'task' must be one of the tasks in 'cluster'. Received: {self.task}; tasks of "
                f"this type in the cluster: {known}. Correct the type or index, or add the task's "
                "address."
            )
        for name in ("environment", "rpc_layer"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ClusterConfigError(
                    f"'{name}' must be a string. Received: {quoted(value)}. Correct or omit it."
                )

    @classmethod
    def from_json(cls, text: str) -> TFConfig:
        """Returns the configuration in a TF_CONFIG string, read as TensorFlow reads it.

        As in TensorFlow, keys other than `cluster`, `task`, `environment` and `rpc_layer` are
        ignored.

        Raises:
          ClusterConfigError: if the string is not JSON or is invalid.
        """
        if not isinstance(text, str) or not text.strip():
            raise ClusterConfigError(
                f"{VARIABLE} must be a JSON object. Received: {quoted(text)}. Unset it to run as "
                f"one process, or write for example {_EXAMPLE}."
            )
        try:
            values = json.loads(text, object_pairs_hook=_build_without_duplicates)
        except ClusterConfigError:
            raise
        except (ValueError, RecursionError) as error:
            hint = "JSON requires double quotes. " if "'" in text and '"' not in text else ""
            raise ClusterConfigError(
                f"{VARIABLE} must be a JSON object. Received: {quoted(text)}, which is not JSON "
                f"({quoted(str(error), 80)}). {hint}Write for example {_EXAMPLE}."
            ) from None
        if not isinstance(values, dict):
            raise ClusterConfigError(
                f"{VARIABLE} must be a JSON object. Received: {quoted(values)}. Write for example "
                f"{_EXAMPLE}."
            )
        return cls(
            cluster=ClusterSpec.from_dict(values.get("cluster")),
            task=_task_from(values.get("task")),
            environment=values.get("environment"),
            rpc_layer=values.get("rpc_layer"),
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> TFConfig | None:
        """Returns the configuration in the environment variable TF_CONFIG; None if it is unset.

        Raises:
          ClusterConfigError: if the variable is set but invalid; an empty value is invalid.
        """
        text = (os.environ if environ is None else environ).get(VARIABLE)
        return None if text is None else cls.from_json(text)

    def to_json(self) -> str:
        """Returns the TF_CONFIG string, from which `from_json` builds an equal object."""
        values: dict[str, Any] = {
            "cluster": self.cluster.to_dict(),
            "task": {"type": self.task.type, "index": self.task.index},
        }
        for name in ("environment", "rpc_layer"):
            if getattr(self, name) is not None:
                values[name] = getattr(self, name)
        return json.dumps(values)

    @property
    def address(self) -> Address | None:
        """The address that this task listens on; None for an evaluator."""
        return self.cluster.addresses.get(self.task)


def _check_type(task_type: object) -> None:
    if not isinstance(task_type, str) or task_type not in TASK_TYPES:
        hint = suggestion(task_type, TASK_TYPES)
        hint = " TensorFlow 2 calls the master 'chief'." if task_type == "master" else hint
        raise ClusterConfigError(
            f"A task's type must be one of {', '.join(TASK_TYPES)}. Received: {quoted(task_type)}. "
            f"Choose one of these.{hint}"
        )


def _check_jobs(addresses: Mapping[Task, Address]) -> None:
    types = [task.type for task in addresses]
    if "evaluator" in types:
        raise ClusterConfigError(
            "An evaluator cannot be part of the training cluster. Received: "
            f"{types.count('evaluator')} in 'cluster'. Remove it from 'cluster', and set only its "
            'own \'task\' to {"type": "evaluator", "index": 0}.'
        )
    if types.count("chief") > 1 or ("chief" in types and Task("chief", 0) not in addresses):
        chiefs = ", ".join(str(task) for task in addresses if task.type == "chief")
        raise ClusterConfigError(
            f"A cluster cannot have a chief other than chief 0. Received: {chiefs}. Make the "
            "others workers."
        )
    if "chief" not in types and "worker" not in types:
        raise ClusterConfigError(
            "A cluster must have at least one task that trains. Received: "
            f"{', '.join(str(task) for task in addresses) or 'no task'}. Add a worker."
        )


def _check_endpoints(addresses: Mapping[Task, Address]) -> None:
    taken: dict[tuple[str, int], Task] = {}
    for task, address in addresses.items():
        other = taken.setdefault(address.endpoint, task)
        if other != task:
            raise ClusterConfigError(
                f"Each task must have its own address. Received: {address} for {other} and {task}. "
                "Use another port or host for one of them."
            )


def _members(job: str, members: object) -> Iterator[tuple[int, object]]:
    if isinstance(members, Mapping):
        for index, address in members.items():
            yield _parse_index(index), address
    elif isinstance(members, (list, tuple)):
        yield from enumerate(members)
    else:
        raise ClusterConfigError(
            "A job must be a list of addresses, or a dictionary from index to address. Received: "
            f"{quoted(members)} for '{job}'. For example: [\"node1:2222\"]."
        )


def _task_from(value: object) -> Task:
    if not isinstance(value, Mapping) or "type" not in value or "index" not in value:
        raise ClusterConfigError(
            "'task' must have the type and the index of this process. "
            f"Received: {quoted(value)}. Write for example "
            '{"type": "worker", "index": 0}, with another index in each process.'
        )
    return Task(value["type"], _parse_index(value["index"]))


def _parse_index(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
        return int(value)
    raise ClusterConfigError(
        f"A task's index must be an integer >= 0. Received: {quoted(value)}. Number the "
        "tasks of a type 0, 1, 2, ..."
    )


def _build_without_duplicates(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise ClusterConfigError(
                f"A JSON object cannot have the same key twice. Received: {quoted(key)} twice. "
                "Remove one of them, or merge the two values."
            )
        values[key] = value
    return values
