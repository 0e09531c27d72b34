"""Arguments that several commands have in common, and the parsers of their values."""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tf_config.cli.launchers import STARTERS, translate_option
from tf_config.environments.allocation import find_allocation
from tf_config.errors import ClusterConfigError, quoted, suggestion
from tf_config.hosts import Host, parse_hostfile, parse_hosts
from tf_config.roles import Roles
from tf_config.worker_range import WorkerRange


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, like all other errors of the command.

    Options cannot be abbreviated, because a new option could change the meaning of an abbreviation.

    Attributes:
      siblings: the parsers of all commands, by name.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{"allow_abbrev": False, **options})
        self.siblings: Mapping[str, argparse.ArgumentParser] = {}
        self._words: Sequence[str] = ()

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        """Parses arguments; unknown ones are an error of this command, not of its parent."""
        words = arguments[0] if arguments else options.get("args")
        self._words = sys.argv[1:] if words is None else list(words)
        namespace, left = super().parse_known_args(*arguments, **options)
        if left:
            hint = self._translations() or self._hint(left[0])
            self.error(f"unrecognized arguments: {' '.join(left)}.{hint}")
        return namespace, left

    def _translations(self) -> str:
        """Returns a sentence for each option of another launcher that precedes the script."""
        sentences: dict[str, str] = {}
        for word in self._words:
            if word.endswith(".py") or word in ("-m", "--"):
                break
            if word.startswith("-") and word.partition("=")[0] not in self._option_string_actions:
                sentence = translate_option(word, self._option_string_actions, self.prog)
                remedy = sentence.partition(" is ")[2]
                sentences.setdefault(remedy, sentence)
        return "".join(sentences.values())

    def _hint(self, word: str) -> str:
        """Returns a suggestion for a word that is not an argument of the command."""
        name, known = word.partition("=")[0], self._option_string_actions
        if not word.startswith("-"):
            return ""
        for command, sibling in self.siblings.items():
            if name in sibling._option_string_actions:  # noqa: SLF001  # argparse names none
                prog = self.prog.rpartition(" ")[0]
                return f" {name} is an option of '{prog} {command}'."
        # Each message names --help anyway, and short options resemble it.
        return suggestion(name, [option for option in known if option not in ("-h", "--help")])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = suggestion(value, action.choices or ())
            if action.choices and "run" in action.choices:
                is_script = any(word.endswith(".py") or word == "-m" for word in self._words)
                if value in STARTERS or (is_script and not hint):
                    hint = f" To run a script, use '{self.prog} run train.py'."
            error.message += f".{hint}"
            raise

    def error(self, message: str) -> NoReturn:
        """Raises the error that `main` prints."""
        end = "" if message.endswith((".", "?")) else "."
        hint = ""
        if " required: " in message:  # an unknown option may have taken the program's place
            names = (word.partition("=")[0] for word in self._words if word.startswith("-"))
            unknown = (name for name in names if name not in self._option_string_actions)
            hint = self._translations() or next(filter(None, map(self._hint, unknown)), "")
        raise ClusterConfigError(f"{message}{end}{hint} See '{self.prog} --help'.")


def add_command(
    subparsers: argparse._SubParsersAction[Any], command: ModuleType, prefix: str
) -> argparse.ArgumentParser:
    """Adds a command described by the constants of its module; returns the command's parser."""
    subparser = subparsers.add_parser(
        command.NAME,
        prog=f"{prefix} {command.NAME}",
        help=command.SUMMARY,
        usage=f"{prefix} {command.NAME} {command.USAGE}".rstrip(),
        description=f"{command.SUMMARY[0].upper()}{command.SUMMARY[1:]}.",
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=32),
        epilog=f"example: {command.EXAMPLE}",
    )
    subparser.siblings = subparsers.choices
    command.add_arguments(subparser)
    return subparser


def offer_paths(action: argparse.Action, kind: str) -> None:
    """Makes the shell complete an argument with files or directories.

    Args:
      action: the action that `add_argument` returned.
      kind: `file` or `directory`.
    """
    action.complete = kind  # type: ignore[attr-defined]


def offer_words(action: argparse.Action, words: Iterable[str]) -> None:
    """Makes the shell complete an argument with words; the argument checks its value itself.

    Args:
      action: the action that `add_argument` returned.
      words: the words to offer.
    """
    joined, function = " ".join(words), f"_tf_config_{action.dest}"
    action.complete = {  # type: ignore[attr-defined]
        "bash": function,
        "zsh": f"({joined})",
        "preamble": {"bash": f'{function}() {{ compgen -W {shlex.quote(joined)} -- "$1"; }}'},
    }


def add_roles(parser: argparse.ArgumentParser, may_change: bool = False) -> None:
    """Adds the arguments for the number of tasks of each type.

    Args:
      parser: the parser to add the arguments to.
      may_change: whether the number of workers may be a range, between which it changes.
    """
    parser.add_argument(
        "--workers",
        type=count_or_range if may_change else count,
        metavar="N|MIN:MAX" if may_change else "N",
        help="workers (1, or the slots of --hosts)" + (", or a range" if may_change else ""),
    )
    parser.add_argument(
        "--ps", type=count, default=0, metavar="N", help="number of parameter servers"
    )
    parser.add_argument("--chief", action="store_true", help="add a chief, which trains as rank 0")
    parser.add_argument("--evaluator", action="store_true", help="add an evaluator")


def roles(arguments: argparse.Namespace) -> Roles:
    """Returns the roles from the arguments of `add_roles`; by default, workers fill the hosts."""
    slots = sum(host.slots for host in hosts(arguments))
    workers = max(slots - arguments.chief, 0) if slots else 1
    if isinstance(arguments.workers, WorkerRange):
        workers = arguments.workers.most
    elif arguments.workers is not None:
        workers = arguments.workers
    return Roles(workers, arguments.ps, arguments.chief, arguments.evaluator)


def add_hosts(parser: argparse.ArgumentParser, default_ports: str) -> None:
    """Adds the arguments for the tasks' hosts and ports."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--hosts", metavar="H1:N,H2:N", help="hosts, each with its number of workers"
    )
    hostfile = where.add_argument(
        "--hostfile", type=Path, metavar="FILE", help="file of hosts, with lines 'H1 slots=N'"
    )
    offer_paths(hostfile, "file")
    where.add_argument(
        "--allocation",
        action="store_true",
        help="the hosts of this batch job: PBS, LSF, Grid Engine",
    )
    parser.add_argument(
        "--ps-hosts",
        metavar="H3,H4",
        help="hosts of the parameter servers (the workers')",
    )
    parser.add_argument(
        "--port", type=port, metavar="P", help=f"first port on each host ({default_ports})"
    )


def hosts(arguments: argparse.Namespace) -> list[Host]:
    """Returns the hosts from the arguments of `add_hosts`; empty for this machine.

    Raises:
      ClusterConfigError: if the hosts are invalid, or the file cannot be read.
    """
    if getattr(arguments, "hosts", None) is not None:
        return parse_hosts(arguments.hosts)
    if getattr(arguments, "hostfile", None) is not None:
        return parse_hostfile(text_of(arguments.hostfile, "--hostfile"), str(arguments.hostfile))
    if getattr(arguments, "allocation", False):
        return find_allocation(os.environ).hosts
    return []


def ps_hosts(arguments: argparse.Namespace) -> list[Host]:
    """Returns the hosts of the parameter servers; empty for the workers' hosts."""
    return [] if arguments.ps_hosts is None else parse_hosts(arguments.ps_hosts)


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the verbosity."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--quiet",
        dest="verbosity",
        action="store_const",
        const=-1,
        default=0,
        help="print only errors",
    )
    group.add_argument(
        "--verbose",
        dest="verbosity",
        action="store_const",
        const=1,
        help="also print starts, settings and TensorFlow's notes",
    )


def text_of(path: Path, option: str) -> str:
    """Returns the content of a file; `-` is standard input.

    Raises:
      ClusterConfigError: if the file cannot be read.
    """
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterConfigError(
            f"{option} must name a text file. Received: {quoted(str(path))} "
            f"({quoted(str(error), 80)}). Correct the path."
        ) from None


def count(text: str) -> int:
    """Returns a number from 0 to 99999."""
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        is_address = ":" in text or text.count(".") > 1  # as in Paddle's --workers
        hint = "; to name hosts, use --hosts H1:N,H2:N" if is_address else ""
        raise argparse.ArgumentTypeError(
            f"the number must be 0 or more, received {quoted(text)}{hint}"
        )
    return int(text)


def count_or_range(text: str) -> int | WorkerRange:
    """Returns a number from 0 to 99999, or a range of numbers of workers, such as 2:4."""
    if re.fullmatch(r"\d+:\d+", text, re.ASCII) is None:
        return count(text)
    try:
        return WorkerRange.parse(text)
    except ClusterConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """Returns a number from 1 to 99999."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"the number must be 1 or more, received {quoted(text)}")
    return int(text)


def port(text: str) -> int:
    """Returns a port from 1 to 65535."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(
            f"the port must be from 1 to 65535, received {quoted(text)}"
        )
    return int(text)


def seconds(text: str) -> float:
    """Returns a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(
            f"the time in seconds must be above 0, received {quoted(text)}"
        )
    return value


def pause(text: str) -> float:
    """Returns a number of seconds, 0 or more."""
    return 0.0 if text == "0" else seconds(text)


def say(text: str) -> None:
    """Prints a note to standard error, separate from the output."""
    print(f"tf-config: {text}", file=sys.stderr, flush=True)
