"""What a shell offers as an argument's value, in the place where shtab looks for it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable


def completed(action: argparse.Action, kind: str) -> None:
    """Has the shell offer files or directories.

    Args:
      action: what `add_argument` returned.
      kind: `file` or `directory`.
    """
    action.complete = kind  # type: ignore[attr-defined]


def completed_by(action: argparse.Action, words: Iterable[str]) -> None:
    """Has the shell offer words, for an argument that checks its value itself.

    Args:
      action: what `add_argument` returned.
      words: the words.
    """
    offered, function = " ".join(words), f"_tf_config_{action.dest}"
    action.complete = {  # type: ignore[attr-defined]
        "bash": function,
        "zsh": f"({offered})",
        "preamble": {"bash": f'{function}() {{ compgen -W {shlex.quote(offered)} -- "$1"; }}'},
    }
