"""Completions that a shell offers for an argument's value, in the attribute that shtab reads."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable


def offer_paths(action: argparse.Action, kind: str) -> None:
    """Makes the shell offer files or directories.

    Args:
      action: the action that `add_argument` returned.
      kind: `file` or `directory`.
    """
    action.complete = kind  # type: ignore[attr-defined]


def offer_words(action: argparse.Action, words: Iterable[str]) -> None:
    """Makes the shell offer words, for an argument that checks its value itself.

    Args:
      action: the action that `add_argument` returned.
      words: the words to offer.
    """
    offered, function = " ".join(words), f"_tf_config_{action.dest}"
    action.complete = {  # type: ignore[attr-defined]
        "bash": function,
        "zsh": f"({offered})",
        "preamble": {"bash": f'{function}() {{ compgen -W {shlex.quote(offered)} -- "$1"; }}'},
    }
