"""What can be updated in a SavedModel: its tables and variables, in the order of their numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Names of inputs and outputs of the signatures. Those of a table or variable begin with its number.
CHAIN, NUMBER, CONTENTS = "chain", "number", "contents"
IDS, ROWS, REMOVED, PRESENT, RETAINS = "ids", "rows", "removed", "present", "retains"


class ServedRows(NamedTuple):
    """Table of a SavedModel.

    Attributes:
      name: names of the layer and of the table.
      width: width of a row.
    """

    name: str
    width: int


class ServedVariable(NamedTuple):
    """Variable of a SavedModel.

    Attributes:
      name: name of the variable.
      shape: its shape; None is any size.
      dtype: name of its dtype.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype of the values as an array, also for dtypes that NumPy itself does not have."""
        return np.dtype(tf.as_dtype(self.dtype).as_numpy_dtype)


class Contents(NamedTuple):
    """Tables and variables of a SavedModel that can be updated.

    >>> contents = Contents((ServedRows("tables/rows_users", 2),), ())
    >>> Contents.from_text(contents.to_text()) == contents
    True
    >>> sorted(contents.specs())
    ['chain', 'number', 'table0_ids', 'table0_present', 'table0_removed', 'table0_retains',
     'table0_rows']

    Attributes:
      tables: the tables.
      variables: the variables.
    """

    tables: tuple[ServedRows, ...]
    variables: tuple[ServedVariable, ...]

    def to_text(self) -> str:
        """Returns the contents as a text, the same for equal contents."""
        return json.dumps({"tables": self.tables, "variables": self.variables})

    @staticmethod
    def from_text(text: str) -> Contents:
        """Returns the contents of which `to_text` returned the text."""
        values = json.loads(text)
        variables = ((name, tuple(shape), dtype) for name, shape, dtype in values["variables"])
        return Contents(
            tuple(ServedRows(*each) for each in values["tables"]),
            tuple(ServedVariable(*each) for each in variables),
        )

    def specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the inputs of the signature "update" by name."""
        return {name: tf.TensorSpec(*spec, name) for name, spec in self._inputs()}

    def _inputs(self) -> Iterator[tuple[str, tuple[Any, Any]]]:
        yield CHAIN, ([], tf.int64)
        yield NUMBER, ([], tf.int64)
        for position, table in enumerate(self.tables):
            for key in (IDS, REMOVED, PRESENT):
                yield table_input(position, key), ([None], tf.int64)
            yield table_input(position, ROWS), ([None, table.width], tf.float32)
            yield table_input(position, RETAINS), ([], tf.bool)
        for position, variable in enumerate(self.variables):
            yield variable_input(position), (variable.shape, tf.as_dtype(variable.dtype))


def table_input(position: int, key: str) -> str:
    """Returns the name of an input of the signature "update" for a table.

    >>> table_input(0, IDS)
    'table0_ids'
    """
    return f"table{position}_{key}"


def variable_input(position: int) -> str:
    """Returns the name of the input of the signature "update" for a variable.

    >>> variable_input(1)
    'variable1'
    """
    return f"variable{position}"
