"""The specification of a job: its roles, hosts and program, and the commands of its tasks."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tf_config.address import Address
from tf_config.builder import PORTS, cluster, free_ports, place, ports_from
from tf_config.cluster import VARIABLE, Task, TFConfig
from tf_config.errors import ClusterConfigError
from tf_config.hosts import Host
from tf_config.launcher import ssh as remote
from tf_config.launcher.commands import Command, argv, command, cores, gpus, is_script
from tf_config.launcher.places import Attempt
from tf_config.launcher.settings import (
    RENDEZVOUS_VARIABLE,
    RESTARTS_VARIABLE,
    SERVER_SAVES_VARIABLE,
    START_TIMEOUT_VARIABLE,
    STEP_TIMEOUT_VARIABLE,
    LaunchOptions,
    LocalTasks,
    resolve_settings,
)
from tf_config.network_interface import check_interface
from tf_config.roles import Roles
from tf_config.secret import SECRET_VARIABLE, new_secret, secret_of
from tf_config.worker_range import STARTED_VARIABLE, WORKERS_VARIABLE, WorkerRange

# The settings that a worker which joins an elastic job has in common with the others.
_SHARED = (
    START_TIMEOUT_VARIABLE,
    STEP_TIMEOUT_VARIABLE,
    RESTARTS_VARIABLE,
    SERVER_SAVES_VARIABLE,
    WORKERS_VARIABLE,
)


@dataclass(frozen=True)
class JobSpec:
    """The specification of a job: the program, its tasks and their hosts.

    Attributes:
      roles: the number of tasks of each type.
      program: the program that each task runs, and its arguments.
      request: the settings of the tasks.
      hosts: the hosts of the training tasks; empty for this machine.
      ps_hosts: the hosts of the parameter servers; empty for the hosts of the training tasks.
      ssh: the command that connects to other hosts.
      port: the first port on each host; None chooses new free ports at each start.
      elastic: the numbers of workers between which the job may shrink and grow, without the chief;
        `roles` has as many as the job may have. None for a fixed number.
    """

    roles: Roles
    program: Sequence[str]
    request: LaunchOptions = field(default_factory=LaunchOptions)
    hosts: Sequence[Host] = ()
    ps_hosts: Sequence[Host] = ()
    ssh: Sequence[str] = ("ssh",)
    port: int | None = None
    elastic: WorkerRange | None = None

    @property
    def started(self) -> Roles:
        """The tasks that are started with the job; the others may join it while it runs."""
        if self.elastic is None:
            return self.roles
        # Without hosts, nothing says how many workers this machine has room for.
        slots = sum(host.slots for host in self.hosts) - self.roles.chief
        workers = min(max(slots, self.elastic.least), self.elastic.most)
        return replace(self.roles, workers=workers)

    @property
    def vacant(self) -> list[Task]:
        """The workers that are not started with the job."""
        return [task for task in self.roles.tasks if task not in self.started.tasks]

    def place(self) -> dict[Task, Host]:
        """Returns the host of each task; those that are not started are on the first host."""
        where = place(self.started, self.hosts, self.ps_hosts)
        first = next(iter(where.values()))
        return {task: where.get(task, first) for task in self.roles.tasks}

    @property
    def elsewhere(self) -> list[str]:
        """The names of the other hosts that take part."""
        where = self.place()
        return list(dict.fromkeys(host.name for host in where.values() if not host.is_here))

    def host_of(self, task: Task) -> str:
        """Returns the name of the host that a task runs on."""
        return self.place()[task].name

    def worker_on(self, host: str) -> Task:
        """Returns one of the workers that run on a host."""
        where = self.place()
        return next(task for task in where if task.type == "worker" and where[task].name == host)

    def can_reach(self, name: str) -> bool:
        """Returns whether a host can be reached and has what the job requires."""
        where = self.place()
        host = next(host for host in where.values() if host.name == name)
        files = [self.program[0]] if is_script(self.program) else []
        try:
            remote.probe({host: 1}, self.ssh, files, self.request.interface)
        except ClusterConfigError:
            return False
        return True

    def commands(
        self, environ: Mapping[str, str], restart: int = 0, is_dry: bool = False
    ) -> list[Command]:
        """Returns the commands of all tasks, the first task's first. Queries the other hosts.

        Args:
          environ: the environment that tasks on this machine inherit. Tasks on other hosts get
            only its library settings.
          restart: the number of restarts so far.
          is_dry: whether the commands are only printed. Other hosts are then not queried, but
            assumed to have as many cores as this one, and free ports from 10000 on.

        Raises:
          ClusterConfigError: if the job cannot be started.
        """
        where = self.place()
        resources = self._find_resources(where, is_dry)
        ports = {name: host.ports for name, host in resources.items()}
        spec = cluster({task: host.name for task, host in where.items()}, ports)
        first = spec.addresses[spec.training_tasks[0]]
        at = Address(first.host, ports[first.host][-1])  # that host has one more port than tasks
        what = argv(self.program)
        # Each start has a new secret, so that a task of an earlier start, which may still be ending
        # on another host, cannot join this one. Commands that are only printed have no secret. See
        # [Note: whose secret] in secret.py.
        secret = "" if is_dry else secret_of(environ) or new_secret()
        return [
            self._command(
                TFConfig(spec, task), what, environ, where, resources, restart, at, secret
            )
            for task in where
            if task in self.started.tasks
        ]

    def attempt(self, commands: Sequence[Command]) -> Attempt:
        """Returns what workers that join an elastic job get, which is started by these commands."""
        first = next(command for command in commands if command.task.type != "ps")
        config = TFConfig.from_json(first.environ[VARIABLE])
        rendezvous = Address.parse(first.environ[RENDEZVOUS_VARIABLE])
        shared = {*_SHARED, *self.request.variables}
        variables = {name: first.environ[name] for name in shared if name in first.environ}
        return Attempt(config.cluster, self.vacant, rendezvous, variables)

    def without(self, task: Task) -> JobSpec | None:
        """Returns the job without one worker and one slot of that worker's host.

        The other workers are renumbered. Returns None if no task would be left to train.
        """
        if self.roles.workers + self.roles.chief < 2:
            return None
        host = self.host_of(task)
        fewer = [
            replace(each, slots=each.slots - 1) if each.name == host else each
            for each in self.hosts
            if each.name != host or each.slots > 1
        ]
        workers = self.roles.workers - 1
        return replace(self, roles=replace(self.roles, workers=workers), hosts=fewer)

    def without_host(self, name: str) -> JobSpec | None:
        """Returns the job without a host and the workers there; None if it needs that host."""
        where = self.place()
        lost = [task for task in where if where[task].name == name]
        hosts = [host for host in self.hosts if host.name != name]
        ps_hosts = [host for host in self.ps_hosts if host.name != name]
        workers = self.roles.workers - sum(task.type == "worker" for task in lost)
        is_chief = any(task.type == "chief" for task in lost)
        if is_chief or workers + self.roles.chief < 1 or (self.ps_hosts and not ps_hosts):
            return None
        roles = replace(self.roles, workers=workers)
        return replace(self, roles=roles, hosts=hosts, ps_hosts=ps_hosts)

    def _find_resources(
        self, where: Mapping[Task, Host], is_dry: bool
    ) -> dict[str, remote.HostResources]:
        """Returns the resources of each host: ports for its tasks, cores and GPUs."""
        counts = Counter(host.name for host in where.values())
        counts[next(iter(where.values())).name] += 1  # one port for the rendezvous
        hosts = {host.name: host for host in where.values()}
        far = {hosts[name]: count for name, count in counts.items() if not hosts[name].is_here}
        files = [self.program[0]] if is_script(self.program) else []
        if is_dry:
            resources = {
                host.name: remote.HostResources(tuple(PORTS[:count]), cores(), None)
                for host, count in far.items()
            }
        else:
            answers = remote.probe(far, self.ssh, files, self.request.interface)
            resources = {host.name: answer for host, answer in answers.items()}
        for name, count in counts.items():
            if hosts[name].is_here:
                check_interface(self.request.interface)
                ports = free_ports(count, name if hosts[name].is_loopback else "")
                resources[name] = remote.HostResources(tuple(ports), cores(), gpus())
            if self.port is not None:
                fixed = tuple(ports_from(self.port, count))
                resources[name] = replace(resources[name], ports=fixed)
        return resources

    def _command(
        self,
        config: TFConfig,
        what: tuple[str, ...],
        environ: Mapping[str, str],
        where: Mapping[Task, Host],
        resources: Mapping[str, remote.HostResources],
        restart: int,
        rendezvous: Address,
        secret: str,
    ) -> Command:
        host = where[config.task]
        started = self.started.tasks
        together = tuple(
            task for task in where if where[task].name == host.name and task in started
        )
        share = max(resources[host.name].cores // len(together), 1)
        place = LocalTasks(config.task, together, share, resources[host.name].gpus)
        inherited = environ if host.is_here else remote.forwarded_environment(environ)
        settings = resolve_settings(self._request(), inherited, place, restart)
        plain = command(config, what, inherited, settings, rendezvous, secret)
        if host.is_here:
            return plain
        return replace(plain, host=host, via=remote.ssh_command(host, self.ssh))

    def _request(self) -> LaunchOptions:
        """Returns the settings of the tasks, with those by which they know of an elastic job."""
        if self.elastic is None:
            return self.request
        chief = int(self.roles.chief)
        workers = WorkerRange(self.elastic.least + chief, self.elastic.most + chief)
        started = self.started.workers + chief
        variables = {WORKERS_VARIABLE: str(workers), STARTED_VARIABLE: str(started)}
        return replace(self.request, variables={**self.request.variables, **variables})


def shell_line(command: Command) -> str:
    """Returns a command as a user would type it on its host, without secrets."""
    variables = {
        name: value
        for name, value in sorted(command.environ.items())
        if (command.host is not None or os.environ.get(name) != value) and name != SECRET_VARIABLE
    }
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*words, shlex.join(command.argv)])
