"""A Kubernetes manifest: a headless Service, a NetworkPolicy, and a Job for each type of task.

TensorFlow's servers do not authenticate clients, so the policy admits only connections from the
job's own pods; it takes effect if the cluster's network plugin supports policies. If a Secret with
the job's name exists, it also protects the servers of this package.

Names of pods: kubernetes.io, "Job with Pod-to-Pod Communication". The Service has a port because
some DNS servers do not resolve the pods of a Service without ports (github.com/kubernetes/dns,
issue 174).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tf_config.cluster import TASK_TYPES
from tf_config.environments.kubernetes import (
    DEFAULT_PORT,
    PORT_VARIABLE,
    SERVICE_VARIABLE,
    TASK_TYPE_VARIABLE,
    TASKS_VARIABLE,
    format_tasks,
)
from tf_config.errors import ClusterConfigError, quoted
from tf_config.render.rules import check, check_range, execute
from tf_config.roles import Roles
from tf_config.secret import SECRET_VARIABLE

_LABEL = "([-a-z0-9]*[a-z0-9])?"
_LONGEST_LABEL = 63
_GPU_TASK_TYPES = ("chief", "worker", "evaluator")
# Strings that YAML 1.1 or 1.2, and therefore kubectl, but not PyYAML, reads as another type: the
# type, a pattern, and the first characters of such strings.
_READ_BY_KUBECTL = (
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z|[-+]?0o[0-7_]+\Z",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:bool", r"[yYnN]\Z", "yYnN"),
)


@dataclass(frozen=True)
class KubernetesJob:
    """A job with one pod per task, validated on construction.

    Each Kubernetes Job ends when one of its pods fails: the other tasks cannot train without that
    pod, and a single restarted pod could not join them.

    Attributes:
      roles: the number of tasks of each type.
      program: the program that each pod runs, and its arguments.
      name: the name of the Service, and the prefix of the Jobs' names.
      image: the container image, which contains this package and the program.
      namespace: the namespace of all objects; None for kubectl's current namespace.
      cpus: the number of CPUs of each pod.
      gpus: the number of GPUs of each pod except parameter servers.
      memory: the memory of each pod, in Kubernetes's notation.
      port: the port that each task listens on.
      options: further options of `tf-config exec`.
    """

    roles: Roles
    program: tuple[str, ...]
    name: str
    image: str
    namespace: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory: str | None = None
    port: int = DEFAULT_PORT
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rule = "must consist of lowercase letters, digits and '-', and cannot begin or end with '-'"
        check(f"A name {rule} or begin with a digit", self.name, f"[a-z]{_LABEL}", "train")
        longest = max((f"{self.name}-{task.label}" for task in self.roles.tasks), key=len)
        if len(longest) > _LONGEST_LABEL:
            raise ClusterConfigError(
                f"The name of a pod cannot exceed {_LONGEST_LABEL} characters. Received: "
                f"{quoted(longest)}, which has {len(longest)}. Choose a shorter name."
            )
        check("An image must be a name without spaces", self.image, r"[!-~]+", "registry/train:1")
        if self.namespace is not None:
            check(
                f"A namespace {rule} or exceed {_LONGEST_LABEL} characters",
                self.namespace,
                rf"(?=.{{1,{_LONGEST_LABEL}}}\Z)[a-z0-9]{_LABEL}",
                "default",
            )
        if self.memory is not None:
            pattern = r"[1-9][0-9]*(\.[0-9]+)?([kMGTPE]|[KMGTPE]i)"
            check("Memory must be a number with a unit of Kubernetes", self.memory, pattern, "4Gi")
        check_range("A port", self.port, 65535)
        self._command()

    def manifest(self) -> str:
        """Returns the manifest as YAML, for `kubectl apply -f`."""
        import yaml  # here, because the import is slow

        class Dumper(yaml.SafeDumper):
            """A dumper that also quotes texts that only kubectl reads as numbers or booleans."""

        for kind, pattern, first in _READ_BY_KUBECTL:
            Dumper.add_implicit_resolver(kind, re.compile(pattern), list(first))
        return self._note() + yaml.dump_all(
            self.documents(), Dumper=Dumper, sort_keys=False, width=100
        )

    def documents(self) -> list[dict[str, Any]]:
        """Returns the Service, the NetworkPolicy and the Jobs."""
        types = {task.type for task in self.roles.tasks}
        return [
            self._service(),
            self._policy(),
            *(self._job(name) for name in TASK_TYPES if name in types),
        ]

    def _note(self) -> str:
        endless = " and ".join(
            name for name, there in (("ps", self.roles.ps), ("evaluator", self.roles.evaluator))
            if there
        )  # fmt: skip
        deletion = "# Before you start the job again, delete it: kubectl delete -f FILE\n"
        if endless:
            deletion = (
                f"# The {endless} tasks may keep running after the workers are done. To end and "
                "delete the job: kubectl delete -f FILE\n"
            )
        return deletion + (
            "# To protect the job with a secret, first run: openssl rand -hex 16 | kubectl create "
            f"secret generic {self.name} --from-file=secret=/dev/stdin\n"
        )

    def _service(self) -> dict[str, Any]:
        spec = {
            "clusterIP": "None",
            # Tasks resolve each other's names before they are ready.
            "publishNotReadyAddresses": True,
            "selector": self._labels(),
            "ports": [{"name": "tasks", "port": self.port}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(self.name, self._labels()),
            "spec": spec,
        }

    def _policy(self) -> dict[str, Any]:
        # All ports, because Gloo and NCCL listen on arbitrary free ports.
        spec = {
            "podSelector": {"matchLabels": self._labels()},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": self._labels()}}]}],
        }
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": self._metadata(self.name, self._labels()),
            "spec": spec,
        }

    def _job(self, task_type: str) -> dict[str, Any]:
        count = sum(task.type == task_type for task in self.roles.tasks)
        spec = {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": self._labels(task_type)},
                "spec": {
                    "subdomain": self.name,
                    "restartPolicy": "Never",
                    "containers": [self._container(task_type)],
                },
            },
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self._metadata(f"{self.name}-{task_type}", self._labels(task_type)),
            "spec": spec,
        }

    def _container(self, task_type: str) -> dict[str, Any]:
        variables = {
            SERVICE_VARIABLE: self.name,
            TASKS_VARIABLE: format_tasks(self.roles),
            TASK_TYPE_VARIABLE: task_type,
            PORT_VARIABLE: str(self.port),
        }
        secret = {"name": self.name, "key": "secret", "optional": True}
        container: dict[str, Any] = {
            "name": task_type,
            "image": self.image,
            "command": self._command(),
            "env": [
                *({"name": name, "value": value} for name, value in variables.items()),
                {"name": SECRET_VARIABLE, "valueFrom": {"secretKeyRef": secret}},
            ],
        }
        limits = self._limits(task_type)
        if limits:
            container["resources"] = {"limits": limits}
        return container

    def _limits(self, task_type: str) -> dict[str, str]:
        # Kubernetes also uses the limits as requests if no requests are given.
        gpus = self.gpus if task_type in _GPU_TASK_TYPES else None
        limits = {"cpu": self.cpus, "memory": self.memory, "nvidia.com/gpu": gpus}
        return {name: str(value) for name, value in limits.items() if value}

    def _command(self) -> list[str]:
        # Kubernetes replaces $(NAME) with the value of a variable, and $$ with a dollar sign.
        command = execute("kubernetes", self.options, self.program)
        return [word.replace("$", "$$") for word in command]

    def _metadata(self, name: str, labels: dict[str, str]) -> dict[str, Any]:
        namespace = {} if self.namespace is None else {"namespace": self.namespace}
        return {"name": name, **namespace, "labels": labels}

    def _labels(self, task_type: str | None = None) -> dict[str, str]:
        """Returns the labels as a new dictionary; a shared one would become an alias in YAML."""
        labels = {
            "app.kubernetes.io/name": "keras-strategies",
            "app.kubernetes.io/instance": self.name,
        }
        return labels if task_type is None else labels | {"app.kubernetes.io/component": task_type}
