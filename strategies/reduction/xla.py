"""What XLA cannot compile: steps that communicate, and those of several devices."""

from __future__ import annotations

import tensorflow as tf

from strategies._tensorflow import is_compiled_by_xla
from strategies.collectives import Collectives


def check_communication(collectives: Collectives) -> None:
    """Checks that XLA does not compile what communicates with other workers.

    Raises:
      ValueError: if it is to compile the function that is traced, and there are other workers.
    """
    if collectives.size > 1 and is_compiled_by_xla(tf.compat.v1.get_default_graph()):
        raise ValueError(
            "What reduces over workers is not compiled by XLA. Received: jit_compile=True. Leave "
            "it at Keras's default, or compile parts of the model that reduce nothing."
        )


def check_devices() -> None:
    """Checks that XLA does not compile what has variables on several devices.

    TensorFlow says so as well, but when the function runs, and by the names of resources.

    Raises:
      ValueError: if it is to compile the function that was traced last, and that has.
    """
    graph = tf.compat.v1.get_default_graph()
    if not is_compiled_by_xla(graph):
        return
    devices = {outer.device for outer, _ in graph.captures if outer.dtype == tf.resource}
    if len(devices) > 1:
        raise ValueError(
            "XLA compiles a step for one device, and replicas are on one each. Received: "
            f"jit_compile=True, with variables on {', '.join(sorted(devices))}. Leave it at "
            "Keras's default, or compile functions that a single replica calls."
        )
