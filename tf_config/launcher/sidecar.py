"""A helper of a task's process, run by the program that starts it: launcher, agent or `exec`.

It connects the task's Horovod process to the rendezvous, which the first task's sidecar serves, and
observes whether the task joins the others. Horovod itself silently waits 1.5 seconds for its
rendezvous and 30 for the other processes. A sidecar waits until the start timeout, and reports for
which task it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from tf_config.address import Address
from tf_config.background import call_regularly
from tf_config.bind_address import bind_first
from tf_config.cluster import ClusterSpec, Task, TFConfig
from tf_config.horovod import environment as horovod
from tf_config.launcher.horovod_proxy import HERE, HorovodProxy
from tf_config.launcher.process_probe import ProcessProbe
from tf_config.launcher.reports import CAN_REJOIN, CREATED, ENTERED, EXCHANGED, LEAVES
from tf_config.launcher.settings import (
    RENDEZVOUS_VARIABLE,
    SIDECAR_VARIABLE,
    server_saves_seconds,
)
from tf_config.launcher.task_resolution import start_timeout
from tf_config.rendezvous.http_store import StoreServer
from tf_config.secret import secret_of

# The agent's messages that a task on another host did not join the others, that it can join them
# again, and that it has left them.
UNSYNCHRONIZED, REJOINS, LEFT = b"apart", b"rejoins", b"left"
_LAST_PORT = 65535
_SAMPLE_EVERY_SECONDS = 0.5


class Sidecar:
    """Serves and watches the process of one task.

    [Note: unsynchronized tasks]
    If a script creates no strategy, each task trains its own model, and none fails. How a task
    joins the others depends on the libraries of the script, so the sidecar combines several signs.
    Reports of this package's strategies are conclusive. Horovod contacts its rendezvous, stock
    strategies of TensorFlow listen on the task's port, and under MPI the process has loaded its
    library. Processes that have loaded TensorFlow and show none of these signs are warned of.

    Args:
      config: the task's configuration.
      environ: the environment of the task's process.
      note: receives messages during waits.

    Attributes:
      task: the task.
      environ: the variables to add to the environment of the process.
    """

    def __init__(self, config: TFConfig, environ: Mapping[str, str], note: Callable[[str], None]):
        self.task = config.task
        self._config = config
        self._trains = config.task in config.cluster.training_tasks
        self._is_in_mpi = any(name in environ for name in horovod.MPI_VARIABLES)
        self._reports: set[str] = set()
        self._probe: ProcessProbe | None = None
        self._closed = threading.Event()
        self._store: StoreServer | None = None
        at = Address.parse(environ[RENDEZVOUS_VARIABLE])
        secret = secret_of(environ)  # the task's: see [Note: whose secret]
        if config.task == config.cluster.training_tasks[0]:
            self._store = _serve_store(at, secret, note)
        timeout = start_timeout(environ)
        self._proxy = HorovodProxy(config, at, timeout, secret, self._reports, note)
        port = self._proxy.server_address[1]
        self.environ = {
            SIDECAR_VARIABLE: f"{HERE}:{port}",
            **(_horovod_environment(config, port, environ) if self._trains else {}),
        }

    @classmethod
    def beside(cls, environ: Mapping[str, str], note: Callable[[str], None]) -> Sidecar | None:
        """Creates the sidecar of a process with this environment; None if it needs none.

        Evaluators and single tasks do not join other tasks. Parameter servers do not either, but
        those that save their state report that they can be restarted.
        """
        config = TFConfig.from_env(environ) if RENDEZVOUS_VARIABLE in environ else None
        if config is None or len(config.cluster.addresses) < 2:
            return None
        is_saved = config.task.type == "ps" and server_saves_seconds(environ) is not None
        is_needed = is_saved or config.task in config.cluster.training_tasks
        return cls(config, environ, note) if is_needed else None

    def start(self, pid: int) -> None:
        """Starts serving and watching a process."""
        if self._trains:
            self._probe = ProcessProbe(pid, self._config.cluster.addresses[self.task])
        for server in (self._store, self._proxy):
            if server is not None:
                server.start()
        call_regularly(self._sample, _SAMPLE_EVERY_SECONDS, self._closed, "sidecar")

    def _sample(self) -> None:
        # Once the task has joined the others, nothing can change the answer.
        if self._probe is not None and self.is_unsynchronized is not False:
            self._probe.sample()

    @property
    def is_unsynchronized(self) -> bool | None:
        """Whether the process computed without joining the others; None if it did not compute."""
        if self._probe is None:
            return None
        # A strategy joins the others when it is created, but trains only models from its scope.
        if CREATED in self._reports:
            return ENTERED not in self._reports
        by_mpi = self._is_in_mpi and self._probe.has_mpi
        if "horovod" in self._reports or self._probe.has_listened or by_mpi:
            return False
        return True if self._probe.uses_tensorflow else None

    @property
    def can_rejoin(self) -> bool:
        """Whether the process, started again, can join the others while they continue."""
        return CAN_REJOIN in self._reports and EXCHANGED not in self._reports

    @property
    def is_leaving(self) -> bool:
        """Whether the process was asked to leave an elastic job."""
        return LEAVES in self._reports

    def close(self) -> None:
        """Stops serving and watching; may be called before `start`."""
        self._closed.set()
        for server in (self._store, self._proxy):
            if server is not None:
                server.close()


def rendezvous_address(cluster: ClusterSpec) -> Address:
    """Returns the address of a cluster's rendezvous, which each task derives from the cluster.

    Its port is the first one above the first task's that no other task on that host has.

    >>> str(rendezvous_address(ClusterSpec.from_dict({"worker": ["a:2222", "b:4000", "a:2223"]})))
    'a:2224'
    """
    first = cluster.addresses[cluster.training_tasks[0]]
    taken = {address.port for address in cluster.addresses.values() if address.host == first.host}
    above = range(first.port + 1, _LAST_PORT + 1)
    below = range(first.port - 1, 0, -1)
    return Address(first.host, next(port for port in (*above, *below) if port not in taken))


def _serve_store(at: Address, secret: str, note: Callable[[str], None]) -> StoreServer | None:
    try:
        return bind_first(at.host, lambda host: StoreServer((host, at.port), secret=secret))
    except OSError as error:
        reason = error.strerror
    note(
        f"Horovod's rendezvous cannot be served at {at} ({reason}). Scripts that call Horovod's "
        "init() themselves cannot start; leave the port free."
    )
    return None


def _horovod_environment(config: TFConfig, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    if len(config.cluster.training_tasks) < 2:
        return {}
    defaults = horovod.defaults(config.cluster, config.task, environ)
    return {
        # The user may choose how Horovod communicates, but not the ranks.
        **{name: value for name, value in defaults.items() if name not in environ},
        **horovod.place(config.cluster, config.task),
        **horovod.rendezvous_at(HERE, port),
    }


def describe_unsynchronized(tasks: Sequence[Task]) -> str:
    """Returns the warning that tasks computed without joining the others."""
    names = ", ".join(map(str, tasks))
    return (
        f"warning: {names} ran TensorFlow but did not connect to the other tasks: each task "
        "trained its own model. Create strategies.from_tf_config() and the model in its scope(), "
        "or start Horovod with its init()."
    )
