"""Tables for a terminal and as plain text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any


def rich_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Any:
    """Returns a table that a `rich.console.Console` fits to the width of its terminal."""
    from rich.table import Table  # here, because the import is slow
    from rich.text import Text

    table = Table(*header, title=title or None, title_justify="left", title_style="")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Returns a table as lines of text that are as wide as its cells.

    >>> print(text_table(("what", "bytes"), [("rows", "7")]))
    ┏━━━━━━┳━━━━━━━┓
    ┃ what ┃ bytes ┃
    ┡━━━━━━╇━━━━━━━┩
    │ rows │ 7     │
    └──────┴───────┘
    """
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=200).print(rich_table(header, rows, title))
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip("\n").splitlines())
