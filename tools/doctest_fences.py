"""Doctests of docstrings as blocks of code, which Markdown does not take them for."""

from __future__ import annotations


def fence_doctests(docstring: str) -> str:
    r"""Returns a docstring whose doctests are between fences.

    To Markdown, `>>> a` is a quotation in a quotation in a quotation, and what it prints belongs to
    the same paragraph. A doctest ends, as in Python, before the next blank line.

    >>> fence_doctests("A sum:\n\n>>> 1 + 1\n2").splitlines()
    ['A sum:', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    lines: list[str] = []
    indent: str | None = None  # of the doctest that the line is in; None outside
    for line in docstring.splitlines():
        text = line.lstrip()
        if indent is None and text.startswith(">>> "):
            indent = line[: -len(text)]
            lines.append(f"{indent}```pycon")
        elif indent is not None and not text:
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    if indent is not None:
        lines.append(f"{indent}```")
    return "\n".join(lines)
