"""The command `tf-config`: reads the arguments, calls one function, prints what it returns."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tf_config import commands, launch
from tf_config.builder import local_cluster
from tf_config.cluster import VARIABLE, Task, TFConfig
from tf_config.environments import ENVIRONMENTS, Resolved, resolve
from tf_config.errors import ClusterConfigError, shown

_NO_AUTHENTICATION = (
    "note: TensorFlow's servers and Horovod's rendezvous have no authentication; whoever reaches "
    "these addresses can join the job or run code in it. Keep them off open networks."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tf-config` with `argv` and returns its exit code.

    0 is success, 2 a wrong argument or configuration (one line on standard error); `run`
    returns the job's own code.
    """
    try:
        arguments = _parser().parse_args(argv)
        return arguments.command(arguments)
    except ClusterConfigError as error:
        print(f"tf-config: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, as all other errors do."""

    def error(self, message: str) -> NoReturn:
        raise ClusterConfigError(f"{message}. '{self.prog} --help' lists what there is.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tf-config",
        description="Builds, checks, shows and launches the topology of a training job.",
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_build(subparsers)
    _add_show(subparsers)
    _add_check(subparsers)
    _add_run(subparsers)
    _add_exec(subparsers)
    return parser


def _add_build(subparsers: argparse._SubParsersAction) -> None:
    build = _add(
        subparsers,
        "build",
        _build,
        "print a TF_CONFIG for each task of a cluster on this machine, one a line",
        "tf-config build --workers 2 --task worker:1",
    )
    _add_roles(build)
    build.add_argument("--ps", type=_count, default=0, metavar="N", help="parameter servers")
    build.add_argument("--task", metavar="TYPE:INDEX", help="print this task's only")


def _add_show(subparsers: argparse._SubParsersAction) -> None:
    show = _add(
        subparsers,
        "show",
        _show,
        "show the cluster that this process is part of, and where that is said",
        "srun tf-config show",
    )
    _add_source(show)


def _add_check(subparsers: argparse._SubParsersAction) -> None:
    check = _add(
        subparsers,
        "check",
        _check,
        "say whether TF_CONFIG is right, and if not, what is wrong",
        "tf-config check --file tf_config.json",
    )
    _add_source(check)


def _add_run(subparsers: argparse._SubParsersAction) -> None:
    run = _add(
        subparsers,
        "run",
        _run,
        "run a script as several workers on this machine",
        "tf-config run --workers 2 --log-dir logs train.py --epochs 3",
    )
    _add_roles(run)
    run.add_argument("--log-dir", type=Path, metavar="DIR", help="write DIR/<task>.log files")
    run.add_argument(
        "--max-restarts",
        type=_count,
        default=0,
        metavar="N",
        help="start all tasks again after a failure (0)",
    )
    _add_program(run, "the cores shared out")


def _add_exec(subparsers: argparse._SubParsersAction) -> None:
    execute = _add(
        subparsers,
        "exec",
        _exec,
        "become a program, with the TF_CONFIG that the scheduler's variables make",
        "srun -n 4 tf-config exec -- python train.py",
    )
    _add_environment(execute)
    _add_program(execute, "all")


def _add_program(parser: argparse.ArgumentParser, default_threads: str) -> None:
    parser.add_argument(
        "--start-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="wait so long for the others at the start (300)",
    )
    parser.add_argument(
        "--threads-per-worker",
        type=_positive,
        metavar="N",
        help=f"of TensorFlow and OpenMP ({default_threads})",
    )
    parser.add_argument("program", help="a Python script, or a program on the PATH")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on as they are")


def _add(
    subparsers: argparse._SubParsersAction, name: str, function: object, summary: str, example: str
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        name, help=summary, description=summary.capitalize() + ".", epilog=f"example: {example}"
    )
    parser.set_defaults(command=function)
    return parser


def _add_roles(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="default: 1")
    parser.add_argument("--chief", action="store_true", help="add a chief, the first to train")


def _add_source(parser: argparse.ArgumentParser) -> None:
    sources = parser.add_mutually_exclusive_group()
    sources.add_argument(
        "--file", type=Path, help=f"read {VARIABLE} from here; - for standard input"
    )
    _add_environment(sources)


def _add_environment(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--from",
        dest="origin",
        metavar="ENVIRONMENT",
        help=f"read this one: {', '.join(ENVIRONMENTS)} (default: the first of them that is there)",
    )


def _build(arguments: argparse.Namespace) -> int:
    cluster = local_cluster(arguments.workers, chief=arguments.chief, ps=arguments.ps)
    tasks = [Task.parse(arguments.task)] if arguments.task else cluster.addresses
    for config in [TFConfig(cluster, task) for task in tasks]:
        print(config.to_json())
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from rich.console import Console  # here, for it takes as long as all the rest together
    from rich.table import Table
    from rich.text import Text

    resolved = _read(arguments)
    config = resolved.config
    table = Table("task", "address", "rank", "")
    ranks = {task: str(rank) for rank, task in enumerate(config.cluster.training_tasks)}
    for task, address in config.cluster.addresses.items():
        here = "this task" if task == config.task else ""
        table.add_row(str(task), Text(str(address)), ranks.get(task, ""), here)
    if config.task not in config.cluster.addresses:
        table.add_row(str(config.task), "", "", "this task")
    Console().print(table)
    for name in ("environment", "rpc_layer"):
        if getattr(config, name):
            print(f"{name}: {getattr(config, name)}")
    print(f"read from: {resolved.origin}")
    for name, value in resolved.variables.items():
        if name != VARIABLE:
            print(f"  {name}={value}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    config = _read(arguments).config
    counts = [
        f"{len(tasks)} {task_type}"
        for task_type in ("chief", "worker", "ps")
        if (tasks := config.cluster.tasks(task_type))
    ]
    print(f"ok: {', '.join(counts)}; this task is {config.task}")
    print(_NO_AUTHENTICATION)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    program = [arguments.program, *arguments.arguments]

    def plan(restart: int) -> list[commands.Command]:
        # New ports each time: those of an attempt that was killed may still be in use.
        cluster = local_cluster(arguments.workers, chief=arguments.chief)
        settings = _settings(arguments) | {commands.RESTARTS_VARIABLE: str(restart)}
        return commands.plan(cluster, program, os.environ, settings)

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character that cannot be shown ends no job
    return launch.run(plan, sys.stdout, arguments.log_dir, arguments.max_restarts)


def _exec(arguments: argparse.Namespace) -> int:
    resolved = _read(arguments)
    config = ENVIRONMENTS[resolved.origin].locate(resolved.config)
    program = [arguments.program, *arguments.arguments]
    command = commands.command(config, commands.argv(program), os.environ, _settings(arguments))
    try:
        os.execvpe(command.argv[0], command.argv, command.environ)
    except OSError as error:
        raise ClusterConfigError(
            f"exec runs a program. Received: {shown(command.argv[0])} ({error.strerror}). "
            "Name a Python script or a program on the PATH."
        ) from None


def _settings(arguments: argparse.Namespace) -> dict[str, str | None]:
    timeout, threads = arguments.start_timeout, arguments.threads_per_worker
    return {
        commands.START_TIMEOUT_VARIABLE: None if timeout is None else f"{timeout:g}",
        **dict.fromkeys(commands.THREAD_VARIABLES, None if threads is None else str(threads)),
    }


def _read(arguments: argparse.Namespace) -> Resolved:
    path = getattr(arguments, "file", None)
    if path is None:
        resolved = resolve(os.environ, arguments.origin)
        if resolved is None:
            raise ClusterConfigError(
                f"The cluster is read from {VARIABLE} or a scheduler's variables. Received: none "
                f"of {', '.join(ENVIRONMENTS)} is there. Set {VARIABLE}, start this under a "
                "scheduler, or see 'tf-config build --help'."
            )
        return resolved
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterConfigError(
            f"--file names a text file. Received: {shown(str(path))} ({shown(str(error), 80)}). "
            "Correct the path."
        ) from None
    return Resolved(TFConfig.from_json(text), str(path), {})


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise argparse.ArgumentTypeError(f"a number is 0 or more, received {shown(text)}")
    return int(text)


def _positive(text: str) -> int:
    if _count(text) < 1:
        raise argparse.ArgumentTypeError(f"threads are 1 or more, received {shown(text)}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"a time in seconds is above 0, received {shown(text)}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
