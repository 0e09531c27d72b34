"""The signatures of a SavedModel that update what it serves, made of TensorFlow's operations only.

"update" applies a delta, and "version" returns which deltas have been applied. Both are available
wherever the model is served: as `served.signatures["update"]` after `tf.saved_model.load`, by name
in a session, and by name in a request to TensorFlow Serving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable, in_save_context
from strategies.embedding.checkpoint.saved_model import ServedTable
from strategies.live.contents import (
    CHAIN,
    CONTENTS,
    IDS,
    NUMBER,
    PRESENT,
    REMOVED,
    RETAINS,
    ROWS,
    Contents,
    table_input,
    variable_input,
)
from strategies.utils.devices import HOST

_ORDER = (
    "Deltas must be applied in order, each of them once, to the SavedModel that they were exported "
    "for. Nothing was changed."
)


class UpdateSignature:
    """Functions of a SavedModel that update its tables and variables.

    Args:
      chain: number of the export, which its deltas have as well.
      contents: description of the tables and variables.
      tables: the tables.
      variables: the variables.

    Attributes:
      number: variable with the number of the last delta that was applied.
    """

    def __init__(
        self,
        chain: int,
        contents: Contents,
        tables: Sequence[ServedTable],
        variables: Sequence[tf.Variable],
    ):
        self._chain = chain
        self._contents = contents
        self._tables = tables
        self._variables = variables
        with tf.init_scope(), tf.device(HOST):
            # Not `tf.Variable`, which a strategy would create on each replica.
            self.number = ResourceVariable(tf.constant(0, tf.int64), trainable=False)

    @property
    def inputs(self) -> list[dict[str, tf.TensorSpec]]:
        """The arguments of `update`."""
        return [self._contents.specs()]

    # tf_keras would convert it with AutoGraph, for which it has no reason.
    @tf.autograph.experimental.do_not_convert
    def update(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Applies a delta, unless it is not the next one; returns its number.

        Each table and each variable changes at once, but not all of them at the same moment.
        """
        with tf.device(HOST):
            expected = [tf.constant(self._chain, tf.int64), self.number.read_value() + 1]
            received = [inputs[CHAIN], inputs[NUMBER]]
            is_next = tf.debugging.assert_equal(tf.stack(received), tf.stack(expected), _ORDER)
        with tf.control_dependencies([is_next]):
            for position, table in enumerate(self._tables):
                keys = (IDS, ROWS, REMOVED, PRESENT, RETAINS)
                table.update(*(inputs[table_input(position, key)] for key in keys))
            # Keras also traces the function before it saves the model. Then, the handle of a
            # distributed variable is not that of the variable which is saved.
            for position, variable in enumerate(self._variables if in_save_context() else ()):
                # Not `assign`, which would write all copies of a distributed variable.
                tf.raw_ops.AssignVariableOp(
                    resource=variable.handle, value=inputs[variable_input(position)]
                )
            with tf.device(HOST):
                self.number.assign(inputs[NUMBER])
                return {NUMBER: tf.identity(inputs[NUMBER])}

    def version(self) -> Any:
        """Returns a traced function that returns the chain, the last number and the contents."""

        @tf.function(input_signature=[], autograph=False)
        def version() -> dict[str, tf.Tensor]:
            with tf.device(HOST):
                return {
                    CHAIN: tf.constant(self._chain, tf.int64),
                    NUMBER: self.number.read_value(),
                    CONTENTS: tf.constant(self._contents.to_text()),
                }

        version.get_concrete_function()
        return version
