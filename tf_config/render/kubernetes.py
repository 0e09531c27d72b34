"""A manifest for Kubernetes: a headless Service, a NetworkPolicy, and a Job for each type of task.

TensorFlow's servers ask nobody who they are, so the policy lets the job's own pods reach each other
and nobody else; it holds where the cluster's network plugin knows policies. What the package itself
serves is guarded as well by a secret, if there is a Secret of that name.

Names of pods: kubernetes.io, "Job with Pod-to-Pod Communication". The Service has a port because
some DNS servers know no pod of one without (github.com/kubernetes/dns, issue 174).
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
from tf_config.errors import ClusterConfigError, shown
from tf_config.render.rules import check, check_range, execute
from tf_config.roles import Roles
from tf_config.secret import SECRET_VARIABLE

_LABEL = "([-a-z0-9]*[a-z0-9])?"
_LONGEST_LABEL = 63
_COMPUTING = ("chief", "worker", "evaluator")
# What YAML 1.1 and 1.2 take for something else than a text, as kubectl does, and PyYAML does not:
# a type, a pattern and the characters that it begins with.
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
    """A job of one pod a task; valid once built.

    A Job of Kubernetes ends with its first failed pod: the other tasks cannot train without it,
    and a pod started anew alone would find nobody to join.

    Attributes:
      roles: how many tasks of each type.
      program: what each pod runs, and its arguments.
      name: the Service's name, and the beginning of the Jobs'.
      image: the container's image; it has this package and the program.
      namespace: where all of it is made; None is the one that kubectl uses.
      cpus: CPUs of each pod.
      gpus: GPUs of each pod that computes, which parameter servers do not.
      memory: memory of each pod, as Kubernetes writes it.
      port: where each task listens.
      options: more options of `tf-config exec`.
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
        rule = "has small letters, digits and '-', no '-' at an end"
        check(f"A name {rule}, and begins with a letter", self.name, f"[a-z]{_LABEL}", "train")
        longest = max((f"{self.name}-{task.label}" for task in self.roles.tasks), key=len)
        if len(longest) > _LONGEST_LABEL:
            raise ClusterConfigError(
                f"The name of a pod has at most {_LONGEST_LABEL} characters. Received: "
                f"{shown(longest)}, which has {len(longest)}. Choose a shorter name."
            )
        check("An image has a name without spaces", self.image, r"[!-~]+", "registry/train:1")
        if self.namespace is not None:
            check(
                f"A namespace {rule}, at most {_LONGEST_LABEL} in all",
                self.namespace,
                rf"(?=.{{1,{_LONGEST_LABEL}}}\Z)[a-z0-9]{_LABEL}",
                "default",
            )
        if self.memory is not None:
            pattern = r"[1-9][0-9]*(\.[0-9]+)?([kMGTPE]|[KMGTPE]i)"
            check("Memory is a number with a unit of Kubernetes", self.memory, pattern, "4Gi")
        check_range("A port", self.port, 65535)
        self._command()

    def manifest(self) -> str:
        """Returns the manifest as YAML; `kubectl apply -f` starts it."""
        import yaml  # here, for it takes as long as all the rest together

        class Dumper(yaml.SafeDumper):
            """Quotes texts that kubectl reads as numbers and truth values, and PyYAML does not."""

        for kind, pattern, first in _READ_BY_KUBECTL:
            Dumper.add_implicit_resolver(kind, re.compile(pattern), list(first))
        return self._note() + yaml.dump_all(
            self.documents(), Dumper=Dumper, sort_keys=False, width=100
        )

    def documents(self) -> list[dict[str, Any]]:
        """Returns the Service, the policy and the Jobs."""
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
        deletion = (
            "# To delete everything, before it can be started again: kubectl delete -f FILE\n"
        )
        if endless:
            deletion = (
                f"# When the workers are done, the {endless} tasks may go on; to end and delete "
                "everything: kubectl delete -f FILE\n"
            )
        return deletion + (
            "# For a secret of the job's own, before: openssl rand -hex 16 | kubectl create secret "
            f"generic {self.name} --from-file=secret=/dev/stdin\n"
        )

    def _service(self) -> dict[str, Any]:
        spec = {
            "clusterIP": "None",
            # Tasks look for each other before they are ready.
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
        # All ports, for Gloo and NCCL take free ones.
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
        # What is only a limit is also what Kubernetes reserves.
        gpus = self.gpus if task_type in _COMPUTING else None
        limits = {"cpu": self.cpus, "memory": self.memory, "nvidia.com/gpu": gpus}
        return {name: str(value) for name, value in limits.items() if value}

    def _command(self) -> list[str]:
        # Kubernetes puts variables in place of $(NAME), and one dollar in place of two.
        command = execute("kubernetes", self.options, self.program)
        return [word.replace("$", "$$") for word in command]

    def _metadata(self, name: str, labels: dict[str, str]) -> dict[str, Any]:
        namespace = {} if self.namespace is None else {"namespace": self.namespace}
        return {"name": name, **namespace, "labels": labels}

    def _labels(self, task_type: str | None = None) -> dict[str, str]:
        """Returns a new dictionary each time: YAML writes a shared one as a reference."""
        labels = {
            "app.kubernetes.io/name": "keras-strategies",
            "app.kubernetes.io/instance": self.name,
        }
        return labels if task_type is None else labels | {"app.kubernetes.io/component": task_type}
