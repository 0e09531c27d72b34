"""The definition of an environment: how it is detected, and how its variables are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tf_config.address import Address
from tf_config.cluster import TFConfig
from tf_config.errors import ClusterConfigError, quoted
from tf_config.roles import Roles


@dataclass(frozen=True)
class RankOnly:
    """The rank of a process that knows no addresses, and where to exchange them.

    Attributes:
      rank: the rank of the process among all processes, from 0.
      size: the number of processes.
      rendezvous: the URL of the rendezvous at which the processes exchange their addresses.
      roles: the roles of the processes; None if the user chooses them.
      leader: the rank of the process that leads the rendezvous.
      address: the address that this process will listen on; None for any free port.
    """

    rank: int
    size: int
    rendezvous: str
    roles: Roles | None = None
    leader: int = 0
    address: Address | None = None


@dataclass(frozen=True)
class Resolved:
    """A configuration and the variables that it was read from.

    Attributes:
      config: the configuration of this task, or its rank if it knows no addresses.
      origin: the name of the environment.
      variables: the variables that were read, with their values.
    """

    config: TFConfig | RankOnly
    origin: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Environment:
    """A scheduler or launcher that describes a process and its cluster in environment variables.

    Attributes:
      name: the environment's name, as in `--from`.
      markers: the variables any of which indicates the environment.
      read: returns the configuration; a pure function of the variables that it reads.
      is_superseded: returns whether to ignore the markers, because another environment describes
        the process more specifically.
      cores: returns the number of cores that the scheduler assigned to each task; None if unknown.
      locate: replaces host names that only the scheduler knows by querying it; not a pure function.
      names_roles: whether the environment assigns the roles chief, ps and evaluator; if not, all
        tasks are workers.
      extra_warnings: returns further warnings about the variables.
      makes_terminals: whether the launcher connects the output of each process to a terminal.
      unsupported: the environment's variables that are ignored, each with its substitute.
      companions: further variables of the environment, which have no meaning without a marker; a
        dictionary to the marker that each requires.
    """

    name: str
    markers: tuple[str, ...]
    read: Callable[[Variables], TFConfig | RankOnly]
    locate: Callable[[TFConfig], TFConfig] = lambda config: config
    is_superseded: Callable[[Mapping[str, str]], bool] = lambda environ: False
    cores: Callable[[Mapping[str, str]], int | None] = lambda environ: None
    names_roles: bool = False
    extra_warnings: Callable[[Mapping[str, str]], list[str]] = lambda environ: []
    makes_terminals: bool = False
    unsupported: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, str] = field(default_factory=dict)

    def is_detected(self, environ: Mapping[str, str]) -> bool:
        """Returns whether this environment started the process with these variables."""
        return any(name in environ for name in self.markers) and not self.is_superseded(environ)

    def warnings(self, environ: Mapping[str, str]) -> list[str]:
        """Returns the warnings about variables, including those that are not supported."""
        ignored = [
            f"{name}={environ[name]} is not read; {instead}"
            for name, instead in self.unsupported.items()
            if environ.get(name, "") not in ("", "0", "1")  # these change nothing
        ]
        return [f"warning: {text}" for text in [*ignored, *self.extra_warnings(environ)]]

    def resolve(self, environ: Mapping[str, str]) -> Resolved:
        """Returns the configuration in `environ`.

        Raises:
          ClusterConfigError: if a variable is missing or invalid.
        """
        variables = Variables(self.name, environ)
        return Resolved(self.read(variables), self.name, variables.seen)


class Variables:
    """Reads the variables of an environment, and records them with their values in `seen`."""

    def __init__(self, origin: str, environ: Mapping[str, str]):
        self._origin = origin
        self._environ = environ
        self.seen: dict[str, str] = {}

    def find(self, *names: str) -> str | None:
        """Returns the first of these variables that is set and not empty; None if none is."""
        for name in names:
            if self._environ.get(name):
                self.seen[name] = self._environ[name]
                return self._environ[name]
        return None

    def text(self, *names: str) -> str:
        """Returns the first of these variables that is set and not empty.

        Raises:
          ClusterConfigError: if none is set.
        """
        value = self.find(*names)
        if value is None:
            raise ClusterConfigError(
                f"The environment '{self._origin}' must set {' or '.join(names)}. Received: it is "
                "not set. Start the process with that launcher, or choose another with --from."
            )
        return value

    def number(self, *names: str) -> int:
        """Returns the first of these variables that is set, as an integer >= 0.

        Raises:
          ClusterConfigError: if none is set, or its value is not such a number.
        """
        value = self.text(*names)
        if not (value.isascii() and value.isdigit() and len(value) <= 10):
            name = next(name for name in names if name in self.seen)
            raise ClusterConfigError(
                f"{name} must be an integer >= 0. Received: {quoted(value)}. Check that it "
                "was not changed by hand."
            )
        return int(value)
