"""The states of the workers, kept on each server."""

from __future__ import annotations

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable, Session
from strategies.utils.devices import HOST

# States of a worker. A killed worker stays PRESENT; a restarted one becomes PRESENT again.
AWAITED, PRESENT, LEFT = 0, 1, 2
SAME_SCRIPT = (
    "Workers and a chief must run the same script, each with its own TF_CONFIG. A task that starts "
    "tf.distribute.Server instead does not train: remove that branch from the script."
)


def worker_states(workers: int) -> ResourceVariable:
    """Creates a variable with the workers' states in the graph of a server."""
    with tf.name_scope("membership/"):
        return ResourceVariable(tf.zeros([workers], tf.int32), name="states", trainable=False)


class Membership:
    """A connection that sets and reads the workers' states on a server.

    Args:
      target: the target of a session with the server.
      workers: the number of workers.

    Attributes:
      session: the session with the server.
    """

    def __init__(self, target: str, workers: int):
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device(HOST):
            self._states = worker_states(workers)
            with tf.name_scope("membership/"):
                number = ResourceVariable(tf.zeros([], tf.int32), name="number", trainable=False)
            self._new_number = tf.compat.v1.placeholder(tf.int32, [])
            self._set_number = number.assign(self._new_number).op
            self._initialize = self._states.initializer
            self._number = number.read_value()
            self._is_initialized = self._states.is_initialized()
            self._present = self._states.read_value()
            self._worker = tf.compat.v1.placeholder(tf.int32, [])
            self._state = tf.compat.v1.placeholder(tf.int32, [])
            self._set_state = self._states.scatter_update(
                tf.IndexedSlices([self._state], [self._worker]), name="set_state"
            ).op
        self.session = Session(target, graph=self._graph)

    def initialize(self, number: int) -> None:
        """Initializes the states: all workers are AWAITED.

        Args:
          number: the server's number.
        """
        # The number comes first: workers read it as soon as the states are initialized.
        self.session.run(self._set_number, {self._new_number: number})
        self.session.run(self._initialize)

    def number(self) -> int:
        """Returns the number of the server that answers; its states must be initialized."""
        return int(self.session.run(self._number))

    def is_initialized(self) -> bool:
        """Returns whether the server has initialized the states."""
        return bool(self.session.run(self._is_initialized))

    def set_state(self, worker: int, state: int) -> None:
        """Sets the state of a worker."""
        self.session.run(self._set_state, {self._worker: worker, self._state: state})

    def workers(self, state: int) -> list[int]:
        """Returns the ranks of the workers in a state."""
        states = self.session.run(self._present).tolist()
        return [worker for worker, other in enumerate(states) if other == state]
