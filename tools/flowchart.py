"""Draws flowcharts in Mermaid's language as SVG, without a browser and without the network.

GitHub draws such a block itself. On the site, Mermaid would be a script of 3 MB from another
server; what our pages need of its language is less than this file.
"""

from __future__ import annotations

import html
import re
from itertools import pairwise

_NODE = r'(\w+)(?:\["([^"]*)"\])?'
_HEIGHT, _GAP, _MARGIN = 46, 22, 8  # of a box, between boxes, around all of them
_CHARACTER = 7.4  # width of one, on average, in the font below


def svg(source: str) -> str:
    r"""Returns a flowchart as SVG, in the colours of the page that it is put into.

    Each line is a chain of nodes: an identifier, or `identifier["text"]`, in which `<br>` begins
    another, smaller line. Nodes are above those that they point to with `flowchart TB`, and below
    them with `flowchart BT`.

    >>> svg('flowchart TB\n a["A<br>first"] --> b').count("<rect")
    2

    Raises:
      ValueError: if the source has anything else.
    """
    head, *lines = [line.strip() for line in source.strip().splitlines()]
    if head not in ("flowchart TB", "flowchart BT"):
        raise ValueError(f"A flowchart must begin with 'flowchart TB' or 'BT'. Received: {head!r}.")
    texts: dict[str, str] = {}
    edges: list[tuple[str, str]] = []
    for line in lines:
        nodes = [re.fullmatch(_NODE, node) for node in re.split(r"\s*-->\s*", line)]
        names = []
        for node in nodes:
            if node is None:
                raise ValueError(f'A line must be a["text"] --> b["text"]. Received: {line!r}.')
            names.append(node[1])
            if node[2] or node[1] not in texts:
                texts[node[1]] = node[2] or node[1]
        edges += pairwise(names)
    levels = _levels(list(texts), edges)
    if head.endswith("BT"):
        levels.reverse()
    return _draw(levels, texts, edges)


def _levels(names: list[str], edges: list[tuple[str, str]]) -> list[list[str]]:
    """Returns the nodes by the length of the longest path to them."""
    depth = dict.fromkeys(names, 0)
    for _ in names:
        for start, end in edges:
            depth[end] = max(depth[end], depth[start] + 1)
    if max(depth.values()) >= len(names):
        raise ValueError(f"A flowchart cannot have a circle. Received: {edges}.")
    return [
        [name for name in names if depth[name] == level] for level in range(max(depth.values()) + 1)
    ]


def _draw(levels: list[list[str]], texts: dict[str, str], edges: list[tuple[str, str]]) -> str:
    lines = {name: text.split("<br>") for name, text in texts.items()}
    longest = max(len(line) for parts in lines.values() for line in parts)
    box = round(longest * _CHARACTER) + 32
    width = max(map(len, levels)) * (box + _GAP) - _GAP + 2 * _MARGIN
    height = len(levels) * (_HEIGHT + _GAP) - _GAP + 2 * _MARGIN
    drawn = []
    place = {}
    for row, level in enumerate(levels):
        left = (width - len(level) * (box + _GAP) + _GAP) / 2
        for column, name in enumerate(level):
            x, y = left + column * (box + _GAP), _MARGIN + row * (_HEIGHT + _GAP)
            place[name] = x + box / 2, y
            drawn.append(f'<rect x="{x:g}" y="{y}" width="{box}" height="{_HEIGHT}" rx="6"/>')
            first, *second = lines[name]
            middle = y + _HEIGHT / 2
            drawn.append(_text(x + box / 2, middle - 4 if second else middle + 5, first, "name"))
            drawn += [_text(x + box / 2, middle + 14, line, "role") for line in second]
    for start, end in edges:
        (x1, y1), (x2, y2) = place[start], place[end]
        down = y2 > y1
        drawn.append(
            f'<path d="M {x1:g} {y1 + _HEIGHT if down else y1} '
            f'L {x2:g} {y2 - 2 if down else y2 + _HEIGHT + 2}"/>'
        )
    return (
        f'<svg class="flowchart" xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" '
        f'viewBox="0 0 {width} {height}">'
        '<defs><marker id="flowchart-tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="tip" d="M 0 0 L 10 5 L 0 10 z"/></marker>'
        "</defs>" + "".join(drawn) + "</svg>"
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{html.escape(text, quote=False)}</text>'
