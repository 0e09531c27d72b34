"""What an environment is: how it is recognised, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tf_config.address import Address
from tf_config.cluster import TFConfig
from tf_config.errors import ClusterConfigError, shown
from tf_config.roles import Roles


@dataclass(frozen=True)
class Unplaced:
    """A process that knows its number, and no addresses.

    Attributes:
      rank: its number among all processes, from 0.
      size: how many there are.
      rendezvous: the URL where they meet.
      roles: which of them has which role; None if that is for the user to say.
      leader: the number of the one that holds the meeting.
      address: where this one will listen; None for any free port.
    """

    rank: int
    size: int
    rendezvous: str
    roles: Roles | None = None
    leader: int = 0
    address: Address | None = None


@dataclass(frozen=True)
class Resolved:
    """A configuration, and the variables that it was read from.

    Attributes:
      config: this task's configuration, or its number where it knows no addresses.
      origin: the environment's name.
      variables: each variable that was read, with its value.
    """

    config: TFConfig | Unplaced
    origin: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Environment:
    """A scheduler or launcher that tells its processes who they are.

    Attributes:
      name: what `--from` calls it.
      markers: the variables of which any shows that it is there.
      read: makes the configuration; a pure function of the variables it asks for.
      excuse: whether the marker does not count, for another environment says more.
      cores: how many cores the scheduler gave each task; None if it does not say.
      locate: replaces names of hosts that only the environment knows; asks it, so not pure.
      names_roles: whether it says which tasks are chief, ps and evaluator; else all are workers.
      remarks: what else to say of the variables.
      unread: variables of it that nothing here reads, each with what stands for it.
    """

    name: str
    markers: tuple[str, ...]
    read: Callable[[Variables], TFConfig | Unplaced]
    locate: Callable[[TFConfig], TFConfig] = lambda config: config
    excuse: Callable[[Mapping[str, str]], bool] = lambda environ: False
    cores: Callable[[Mapping[str, str]], int | None] = lambda environ: None
    names_roles: bool = False
    remarks: Callable[[Mapping[str, str]], list[str]] = lambda environ: []
    unread: Mapping[str, str] = field(default_factory=dict)

    def is_there(self, environ: Mapping[str, str]) -> bool:
        """Whether a process with these variables was started by it."""
        return any(name in environ for name in self.markers) and not self.excuse(environ)

    def warnings(self, environ: Mapping[str, str]) -> list[str]:
        """Returns remarks, and variables that are set, other than to 0 or 1, and not read."""
        unread = [
            f"{name}={environ[name]} is not read; {instead}"
            for name, instead in self.unread.items()
            if environ.get(name, "") not in ("", "0", "1")
        ]
        return [f"warning: {text}" for text in [*unread, *self.remarks(environ)]]

    def resolve(self, environ: Mapping[str, str]) -> Resolved:
        """Returns the configuration in `environ`.

        Raises:
          ClusterConfigError: if a variable is missing or wrong.
        """
        variables = Variables(self.name, environ)
        return Resolved(self.read(variables), self.name, variables.seen)


class Variables:
    """An environment's variables, read by name; remembers which."""

    def __init__(self, origin: str, environ: Mapping[str, str]):
        self._origin = origin
        self._environ = environ
        self.seen: dict[str, str] = {}

    def find(self, *names: str) -> str | None:
        """Returns the first of these variables that is set and not empty, None if none is."""
        for name in names:
            if self._environ.get(name):
                self.seen[name] = self._environ[name]
                return self._environ[name]
        return None

    def text(self, *names: str) -> str:
        """Returns the first of these variables that is set.

        Raises:
          ClusterConfigError: if none is.
        """
        value = self.find(*names)
        if value is None:
            raise ClusterConfigError(
                f"The environment '{self._origin}' sets {' or '.join(names)}. Received: it is not "
                "set. Start the process with that launcher, or choose another with --from."
            )
        return value

    def number(self, *names: str) -> int:
        """Returns the first of these variables that is set, a whole number from 0.

        Raises:
          ClusterConfigError: if none is, or it is something else.
        """
        value = self.text(*names)
        if not (value.isascii() and value.isdigit() and len(value) <= 10):
            name = next(name for name in names if name in self.seen)
            raise ClusterConfigError(
                f"{name} is a whole number from 0. Received: {shown(value)}. "
                "See that it was not changed by hand."
            )
        return int(value)
