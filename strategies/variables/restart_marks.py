"""What a parameter server must know of a variable to save its value and restore it after a restart.

A server knows the names, dtypes and shapes of its variables from the graphs of its workers. What it
must know beyond that is recorded in a collection of the graph; see `ps/manifest.py`. In eager mode,
nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable

_COLLECTION = "keras_strategies/restart_marks"


class RestartMark(NamedTuple):
    """How a variable is saved and restored.

    Attributes:
      length: the name of the variable that holds the number of rows in use. Only these are saved,
        because the others are reserved memory that nothing has been written to. None saves all.
      advance: the number that is added to the restored values.
    """

    length: str | None = None
    advance: int = 0


def mark_rows_in_use(array: ResourceVariable, length: ResourceVariable) -> None:
    """Records which variable holds the number of rows in use of an array that grows."""
    _mark(array, lambda: {"length": name_of(length.handle.op)})


def mark_advance(variable: ResourceVariable, advance: int) -> None:
    """Records that a number is added to a variable when it is restored after a restart."""
    _mark(variable, lambda: {"advance": advance})


def marks_in(graph: tf.Graph) -> dict[str, RestartMark]:
    """Returns the marks of a graph's variables, by the variables' names on the server."""
    marks: dict[str, RestartMark] = {}
    for name, fields in graph.get_collection(_COLLECTION):
        marks[name] = marks.get(name, RestartMark())._replace(**fields)
    return marks


def name_of(operation: tf.Operation) -> str:
    """Returns the name that a variable or table has on a server, from the operation of its handle.

    A table without a shared name has the name of its operation.
    """
    return operation.get_attr("shared_name").decode() or operation.name


def _mark(variable: ResourceVariable, fields: Callable[[], dict[str, Any]]) -> None:
    with tf.init_scope():
        if not tf.executing_eagerly():
            tf.compat.v1.add_to_collection(_COLLECTION, (name_of(variable.handle.op), fields()))
