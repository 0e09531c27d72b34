"""The back ends for exchanging values over a network, each registered under its name.

A back end registers itself where it is implemented, as the executors of submitit do
(submitit/core/plugins.py, github.com/facebookincubator/submitit). To add one:

1. Write a module of this package that implements `base.NetworkCollectives` and registers a
   `Backend`; `tensorflow.py` is the shortest example.
2. Import that module in `selection.py`, which makes its name a value of `communication`.
3. Add the name to those with which `tests/strategies/multi_worker_test.py` runs its programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strategies.collectives.base import NetworkCollectives
from strategies.compat.tensorflow import CommunicationOptions
from tf_config import ClusterSpec, Task

_backends: dict[str, Backend] = {}


@dataclass(frozen=True)
class Backend:
    """A way for workers to exchange values over a network.

    Attributes:
      name: the value of the argument `communication` that selects it.
      title: its name in messages.
      preference: "auto" selects the back end with the lowest number that has no obstacle.
      find_obstacle: takes the worker's first device and TensorFlow's options; returns why "auto"
        cannot select the back end, or "" if it can. Each worker calls it before workers are
        connected, so it must not communicate; if workers select different back ends, the
        rendezvous raises an error.
      connect: takes the cluster, this task, the number of seconds to wait, the worker's first
        device and TensorFlow's options; waits for all workers and returns their collectives, the
        same object if it is called again. It raises ValueError for options that the back end
        does not support, and ImportError if it is not installed.
    """

    name: str
    title: str
    preference: int
    find_obstacle: Callable[[str, CommunicationOptions], str]
    connect: Callable[[ClusterSpec, Task, float, str, CommunicationOptions], NetworkCollectives]


def register(backend: Backend) -> None:
    """Makes a back end available under its name."""
    _backends[backend.name] = backend


def backend_of(name: str) -> Backend:
    """Returns the back end that is registered under a name."""
    return _backends[name]


def backends() -> list[Backend]:
    """Returns all registered back ends, by preference."""
    return sorted(_backends.values(), key=lambda backend: backend.preference)


def select_backend(device: str, options: CommunicationOptions) -> tuple[Backend, str]:
    """Returns the preferred back end without an obstacle, and why "auto" selects it.

    The reason is the obstacle of the back end before it. The last one is returned even if it has an
    obstacle; connecting it then raises an error with the details.

    Args:
      device: this worker's first device.
      options: the options of TensorFlow's collectives.
    """
    reason = "it is installed"
    for backend in backends():
        obstacle = backend.find_obstacle(device, options)
        if not obstacle:
            break
        reason = obstacle
    return backend, reason
