"""SVG drawings of a cluster: its hosts, their tasks, and further lines of text for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from tf_config.cluster import ClusterSpec, Task

_LINE, _PAD, _GAP, _TITLE = 18.0, 12.0, 16.0, 44.0
_CHARACTER, _HEAD_CHARACTER = 7.0, 9.0  # approximate widths in a line and in a heading
_NARROWEST, _WIDEST = 130.0, 430.0
_ACROSS = 1000.0
_MOST_LINES = 24
_COLOURS = {
    "worker": ("#ddf4ff", "#0969da"),
    "chief": ("#dafbe1", "#1a7f37"),
    "ps": ("#fff1e5", "#bc4c00"),
    "evaluator": ("#fbefff", "#8250df"),
}
_STYLE = (
    "text { font-family: Helvetica, Arial, sans-serif; font-size: 12px; fill: #24292f; } "
    ".head { font-weight: bold; font-size: 14px; }"
)


@dataclass(frozen=True)
class Box:
    """One task of a drawing.

    Attributes:
      kind: the task's type, which determines the color of the box.
      title: the task's name.
      lines: the lines below the title.
      is_marked: whether the box has a bold frame.
    """

    kind: str
    title: str
    lines: Sequence[str] = ()
    is_marked: bool = False


def draw_cluster(
    cluster: ClusterSpec, this_task: Task | None, held: Mapping[Task, Sequence[str]] | None = None
) -> str:
    """Returns an SVG drawing of a cluster.

    >>> spec = ClusterSpec.from_dict({"worker": ["node1:2222", "node2:2222"]})
    >>> draw_cluster(spec, Task("worker", 0)).count("<rect")
    5

    Args:
      cluster: the tasks and their addresses.
      this_task: the task whose box has a bold frame; None for no task.
      held: further lines for each task.
    """
    hosts: dict[str, list[Box]] = {}
    for task, address in cluster.addresses.items():
        lines = [f"port {address.port}", *(held or {}).get(task, ())]
        box = Box(task.type, str(task), lines, task == this_task)
        hosts.setdefault(address.host, []).append(box)
    counts = {kind: len(cluster.tasks(kind)) for kind in ("chief", "worker", "ps")}
    names = {"chief": "chief", "worker": "worker", "ps": "server"}
    tasks = ", ".join(_count_text(count, names[kind]) for kind, count in counts.items() if count)
    here = f"; this is {this_task}" if this_task in cluster.addresses else ""
    return draw(f"{tasks} on {_count_text(len(hosts), 'host')}{here}", hosts)


def draw(title: str, hosts: Mapping[str, Sequence[Box]]) -> str:
    """Returns an SVG drawing of tasks that are grouped by host.

    >>> ElementTree.fromstring(draw("one", {"node1": [Box("worker", "worker 0")]})).tag
    '{http://www.w3.org/2000/svg}svg'
    """
    width = _box_width([box for boxes in hosts.values() for box in boxes])
    panels = ElementTree.Element("g")
    x, y, row_height, right = _PAD, _TITLE, 0.0, 0.0
    across = max(1, int((_ACROSS - 2 * _PAD) // (width + _GAP)))
    for host, boxes in hosts.items():
        columns = min(across, len(boxes))
        panel_width = max(columns * (width + _GAP) + _GAP, _HEAD_CHARACTER * len(host) + 2 * _PAD)
        if x > _PAD and x + panel_width > _ACROSS:
            x, y, row_height = _PAD, y + row_height + _GAP, 0.0
        height = _panel(panels, host, boxes, (x, y, width, panel_width), columns)
        right, row_height = max(right, x + panel_width), max(row_height, height)
        x += panel_width + _GAP
    size = max(right, _HEAD_CHARACTER * len(title) + 2 * _PAD) + _PAD, y + row_height + _PAD
    return _document(title, size, panels)


def _document(title: str, size: tuple[float, float], panels: ElementTree.Element) -> str:
    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": f"{size[0]:g}",
            "height": f"{size[1]:g}",
            "viewBox": f"0 0 {size[0]:g} {size[1]:g}",
            "role": "img",
        },
    )
    ElementTree.SubElement(root, "title").text = title
    ElementTree.SubElement(root, "style").text = _STYLE
    _rectangle(root, (0, 0, *size), "#ffffff", "none")
    _text(root, _PAD, 26, title, "head")
    root.append(panels)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _panel(
    parent: ElementTree.Element,
    host: str,
    boxes: Sequence[Box],
    place: tuple[float, float, float, float],
    columns: int,
) -> float:
    """Draws a host with its tasks; returns the height of the panel."""
    left, top, width, panel_width = place
    panel = ElementTree.SubElement(parent, "g")
    y = top + _LINE + _PAD
    rows = [boxes[start : start + columns] for start in range(0, len(boxes), columns)]
    drawn = []
    for row in rows:
        height = max(1 + len(_format(box)) for box in row) * _LINE + _PAD
        drawn += [(box, left + _GAP + n * (width + _GAP), y, height) for n, box in enumerate(row)]
        y += height + _GAP
    _rectangle(panel, (left, top, panel_width, y - top), "none", "#afb8c1", dashed=True)
    _text(panel, left + _PAD, top + _LINE, host, "head")
    for box, x, y_of_box, height in drawn:
        _box(panel, box, (x, y_of_box, width, height))
    return y - top


def _count_text(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _box(parent: ElementTree.Element, box: Box, place: tuple[float, float, float, float]) -> None:
    x, y, width, _ = place
    fill, stroke = _COLOURS.get(box.kind, ("#f6f8fa", "#57606a"))
    group = ElementTree.SubElement(parent, "g")
    _rectangle(group, place, fill, stroke, bold=box.is_marked)
    _text(group, x + _PAD, y + _LINE + 2, box.title, "head")
    for number, line in enumerate(_format(box), 2):
        _text(group, x + _PAD, y + number * _LINE + 2, _shorten(line, width), "")


def _format(box: Box) -> list[str]:
    lines = list(box.lines)
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[: _MOST_LINES - 1], f"and {len(lines) - _MOST_LINES + 1} more"]


def _box_width(boxes: Sequence[Box]) -> float:
    texts = [text for box in boxes for text in (box.title, *box.lines)]
    longest = max(map(len, texts), default=0) * _CHARACTER + 2 * _PAD
    return min(max(longest, _NARROWEST), _WIDEST)


def _shorten(text: str, width: float) -> str:
    """Returns a text, with '...' in place of its middle if it does not fit into a box."""
    most = int((width - 2 * _PAD) / _CHARACTER)
    if len(text) <= most:
        return text
    return f"{text[: most // 2 - 1]}...{text[len(text) - (most - most // 2 - 2) :]}"


def _rectangle(
    parent: ElementTree.Element,
    place: tuple[float, float, float, float],
    fill: str,
    stroke: str,
    dashed: bool = False,
    bold: bool = False,
) -> None:
    names = ("x", "y", "width", "height")
    attributes = {name: f"{value:g}" for name, value in zip(names, place, strict=True)}
    attributes |= {"fill": fill, "stroke": stroke, "stroke-width": "3" if bold else "1.5"}
    if stroke != "none":
        attributes["rx"] = "6"
    if dashed:
        attributes["stroke-dasharray"] = "5 4"
    ElementTree.SubElement(parent, "rect", attributes)


def _text(parent: ElementTree.Element, x: float, y: float, text: str, style: str) -> None:
    attributes = {"x": f"{x:g}", "y": f"{y:g}", **({"class": style} if style else {})}
    ElementTree.SubElement(parent, "text", attributes).text = text
