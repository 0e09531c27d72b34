"""Parsers of Slurm's node lists, which keep the order of the nodes and leading zeros."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tf_config.errors import ClusterConfigError, quoted

_NODES = re.compile(r"(?:[^,\s\[\]]|\[[^\[\]]*\])+")
_PARTS = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)
_MOST_NODES = _MOST_TASKS = 1 << 16


def parse_node_list(text: str) -> list[str]:
    """Returns the node names in a Slurm node list, in the order of the list.

    Accepts the same lists as `scontrol show hostnames` (slurm.schedmd.com/scontrol.html), and also
    names that continue after a bracket.

    >>> parse_node_list("rack[1-2]node[09-10],login")
    ['rack1node09', 'rack1node10', 'rack2node09', 'rack2node10', 'login']
    >>> parse_node_list("n[9-10]-ib")
    ['n9-ib', 'n10-ib']

    Raises:
      ClusterConfigError: if the text is not a node list.
    """
    names: list[str] = []
    rest = re.sub(r"[,\s]+", "", _NODES.sub("", text))
    groups = _NODES.findall(text)
    if rest or not groups:
        raise _node_list_error(text)
    for group in groups:
        expanded = [""]
        for brackets, plain in _PARTS.findall(group):
            parts = [plain] if plain else list(_expand(brackets, text))
            if len(expanded) * len(parts) > _MOST_NODES:
                raise _node_list_error(text)
            expanded = [start + part for start in expanded for part in parts]
        names += expanded
        if len(names) > _MOST_NODES:
            raise _node_list_error(text)
    return names


def parse_tasks_per_node(text: str) -> list[int]:
    """Returns the number of tasks on each node, given Slurm's abbreviated form.

    >>> parse_tasks_per_node("4(x2),3")
    [4, 4, 3]

    Raises:
      ClusterConfigError: if the text is not in this form.
    """
    counts: list[int] = []
    for group in text.split(","):
        match = _COUNT.fullmatch(group.strip())
        if match is None or len(group) > 16 or not _fits(match, counts):
            raise ClusterConfigError(
                "Tasks per node must have Slurm's form: '4(x2),3'. "
                f"Received: {quoted(text)}. Check that the variable was not changed by hand."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _fits(match: re.Match[str], counts: list[int]) -> bool:
    nodes, tasks = int(match[2] or 1), int(match[1])
    return len(counts) + nodes <= _MOST_NODES and sum(counts) + nodes * tasks <= _MOST_TASKS


def _expand(ranges: str, text: str) -> Iterator[str]:
    left = _MOST_NODES
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if match is None or len(item) > 32:
            raise _node_list_error(text)
        first, last = match[1], match[2] or match[1]
        left -= int(last) - int(first) + 1
        if int(last) < int(first) or left < 0:
            raise _node_list_error(text)
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}}"


def _node_list_error(text: str) -> ClusterConfigError:
    return ClusterConfigError(
        f"A node list must have Slurm's form: 'n[1-3,07],login'. Received: {quoted(text)}. Compare "
        "it with 'scontrol show hostnames'."
    )
