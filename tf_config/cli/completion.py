"""`tf-config completion`."""

from __future__ import annotations

import argparse

NAME = "completion"
USAGE = "bash|zsh"
SUMMARY = "print a script that lets the shell complete tf-config's commands and arguments"
EXAMPLE = 'eval "$(tf-config completion bash)"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "shell",
        choices=["bash", "zsh"],
        help="add the example's line, with this shell, to ~/.bashrc, or to ~/.zshrc after compinit",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    import shtab

    print(shtab.complete(arguments.whole_parser, arguments.shell))
    return 0
