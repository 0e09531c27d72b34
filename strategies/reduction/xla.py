"""Checks that XLA does not compile steps that communicate or use several devices."""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.compat.tensorflow import is_compiled_by_xla


def check_communication(collectives: Collectives) -> None:
    """Checks that XLA does not compile communication with other workers.

    Raises:
      ValueError: if XLA would compile the function being traced and there are other workers.
    """
    if collectives.size > 1 and is_compiled_by_xla(tf.compat.v1.get_default_graph()):
        raise ValueError(
            "XLA cannot compile a step that communicates between workers. Received: "
            "jit_compile=True. Leave it at Keras's default, or compile parts of the model that do "
            "not communicate."
        )


def check_devices() -> None:
    """Checks that XLA does not compile a function with variables on several devices.

    TensorFlow also raises an error, but only when the function runs, without naming the cause.

    Raises:
      ValueError: if XLA would compile the function being traced and its variables are on several
        devices.
    """
    graph = tf.compat.v1.get_default_graph()
    if not is_compiled_by_xla(graph):
        return
    devices = {outer.device for outer, _ in graph.captures if outer.dtype == tf.resource}
    if len(devices) > 1:
        raise ValueError(
            "XLA cannot compile a step that uses several devices. Received: jit_compile=True, with "
            f"variables on {', '.join(sorted(devices))}. Leave it at Keras's default, or compile "
            "functions that a single replica calls."
        )
