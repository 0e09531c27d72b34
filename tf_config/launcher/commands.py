"""The command of each task: program, arguments, environment and host; does not start anything."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

from tf_config.address import Address
from tf_config.cluster import VARIABLE, Task, TFConfig
from tf_config.errors import ClusterConfigError, quoted, suggestion
from tf_config.hosts import Host
from tf_config.launcher.settings import RENDEZVOUS_VARIABLE, Setting
from tf_config.secret import SECRET_VARIABLE

# The module of a parameter server, started by name because this package does not depend on it.
SERVER = "strategies.serve"
_OTHER_GPUS = ("/dev/kfd", "/dev/dxg")
MODULE = "-m"  # takes the place of the program if its first argument is a module
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@dataclass(frozen=True)
class Command:
    """The command that is started for one task.

    Attributes:
      task: the task.
      argv: the program and its arguments.
      environ: the whole environment; on another host, the variables to add to that host's.
      host: the host, if it is another one; None for this machine.
      via: the command that connects to the other host and starts the agent there.
    """

    task: Task
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    host: Host | None = None
    via: tuple[str, ...] = ()


def argv(program: Sequence[str]) -> tuple[str, ...]:
    """Returns the command line for a program and its arguments.

    A script `x.py` or a module `-m package.module` runs with this Python.

    Raises:
      ClusterConfigError: if the program is a script or a module that does not exist or has a syntax
        error.
    """
    if program[0] == MODULE:
        path = script_of(program)
        if path is None:
            name = program[1] if len(program) > 1 else ""
            raise ClusterConfigError(
                f"-m must name a module. Received: {quoted(name)}, which Python cannot find from "
                "this directory, or which is a package without a module __main__. Correct the "
                "name, or start tf-config where 'python -m' finds it."
            )
        if path.suffix == ".py":
            _check_syntax(path)
        return (sys.executable, *program)
    if not is_script(program):
        return tuple(program)
    path = Path(program[0])
    if not path.is_file():
        candidates: list[str] = []
        with contextlib.suppress(OSError):
            candidates = [str(path.parent / name) for name in os.listdir(path.parent)]
        raise ClusterConfigError(
            f"The script must exist. Received: {quoted(program[0])}, which is not a file here. "
            f"Correct the path.{suggestion(path, candidates)}"
        )
    _check_syntax(path)
    return (sys.executable, *program)


def _check_syntax(path: Path) -> None:
    """Checks the syntax of a script, so that an error is reported once and not by each task."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), path, "exec", dont_inherit=True)
    except OSError:
        return  # Python reports it
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = (
            ""
            if line is None
            else f", line {line} ({quoted((getattr(error, 'text', '') or '').strip(), 60)})"
        )
        raise ClusterConfigError(
            f"A script must be valid Python {sys.version_info.major}.{sys.version_info.minor}. "
            f"Received: {quoted(str(path))}{where}: {getattr(error, 'msg', error)}. Correct the "
            "script."
        ) from None


def is_script(program: Sequence[str]) -> bool:
    """Returns whether a program is a Python script."""
    return program[0].endswith(".py")


def script_of(program: Sequence[str]) -> Path | None:
    """Returns the file of a script or module, which may not exist; None for another program.

    The packages that contain a module are not imported.

    >>> script_of(["train.py"])
    PosixPath('train.py')
    >>> script_of(["-m", "timeit", "pass"]).name
    'timeit.py'
    """
    if program[0] != MODULE:
        return Path(program[0]) if is_script(program) else None
    names = program[1].split(".") if len(program) > 1 else [""]
    locations: Sequence[str] | None = [os.getcwd(), *sys.path]
    spec = None
    for number in range(len(names)):
        spec = _find_spec(".".join(names[: number + 1]), locations)
        locations = None if spec is None else spec.submodule_search_locations
    if spec is not None and locations is not None:  # a package
        spec = _find_spec(f"{spec.name}.__main__", locations)
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _find_spec(name: str, locations: Sequence[str] | None) -> ModuleSpec | None:
    """Returns the spec of a module whose package is in one of these locations; None if none is."""
    if locations is None or not name.rpartition(".")[2].isidentifier():
        return None
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    specs = (finder.find_spec(name, locations) for finder in finders)
    return next((spec for spec in specs if spec is not None), None)


def command(
    config: TFConfig,
    what: tuple[str, ...],
    environ: Mapping[str, str],
    settings: Sequence[Setting],
    rendezvous: Address,
    secret: str = "",
) -> Command:
    """Returns the command of one task: `what` in `environ`, with the task's settings and TF_CONFIG.

    A ps task runs the parameter server instead of `what`. If the cluster has several tasks, each
    gets the job's secret, if there is one.
    """
    values = {setting.variable: setting.value for setting in settings}
    variables = {**environ, **values, VARIABLE: config.to_json()}
    if len(config.cluster.addresses) > 1:
        variables[RENDEZVOUS_VARIABLE] = str(rendezvous)
        if secret:
            variables[SECRET_VARIABLE] = secret
    if config.task.type != "ps":
        return Command(config.task, what, variables)
    # Without warnings, because a server's are about requests that workers cancel when they end.
    is_argument = any(each.variable == LOG_LEVEL and each.origin == "argument" for each in settings)
    variables[LOG_LEVEL] = values[LOG_LEVEL] if is_argument else environ.get(LOG_LEVEL, "2")
    return Command(config.task, (sys.executable, "-m", SERVER), variables)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> int | None:
    """Returns this machine's number of GPUs; None if only TensorFlow could determine it.

    NVIDIA's driver creates a device file per GPU. GPUs of other vendors, and those that Windows
    passes to a virtual machine, have other files, which do not show their number.
    """
    if any(Path(name).exists() for name in _OTHER_GPUS):
        return None
    return sum(name[6:].isdigit() for name in os.listdir("/dev") if name.startswith("nvidia"))
