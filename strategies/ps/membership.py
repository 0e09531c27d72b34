"""Which workers are there, as a server knows it."""

from __future__ import annotations

import tensorflow as tf

from strategies._tensorflow import ResourceVariable

# States of a worker. One that was killed is still there; one that comes again is there again.
AWAITED, HERE, LEFT = 0, 1, 2
SAME_SCRIPT = (
    "Workers and a chief run the same script, each with its own TF_CONFIG; one that starts "
    "tf.distribute.Server in place of it does not train: leave that branch out."
)


def states(workers: int) -> ResourceVariable:
    """Returns each worker's state, in a graph of what runs on a server."""
    with tf.name_scope("presence/"):
        return ResourceVariable(tf.zeros([workers], tf.int32), name="states", trainable=False)


class Membership:
    """Tells a server where a worker is, and asks it about the others.

    Args:
      target: of a session with the server.
      workers: how many there are.

    Attributes:
      session: the connection.
    """

    def __init__(self, target: str, workers: int):
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device("/device:CPU:0"):
            self._states = states(workers)
            self._begin = self._states.initializer
            self._is_begun = self._states.is_initialized()
            self._present = self._states.read_value()
            self._who = tf.compat.v1.placeholder(tf.int32, [])
            self._what = tf.compat.v1.placeholder(tf.int32, [])
            self._tell = self._states.scatter_update(
                tf.IndexedSlices([self._what], [self._who]), name="tell"
            ).op
        self.session = tf.compat.v1.Session(target, graph=self._graph)

    def begin(self) -> None:
        """Says that no worker has come yet."""
        self.session.run(self._begin)

    def is_begun(self) -> bool:
        """Whether the server has said so."""
        return bool(self.session.run(self._is_begun))

    def tell(self, worker: int, state: int) -> None:
        """Says where a worker is."""
        self.session.run(self._tell, {self._who: worker, self._what: state})

    def workers(self, state: int) -> list[int]:
        """Returns the workers of a state, by rank."""
        found = self.session.run(self._present).tolist()
        return [worker for worker, theirs in enumerate(found) if theirs == state]
