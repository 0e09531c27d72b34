"""Which workers are there, as a server knows it."""

from __future__ import annotations

import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.server.connection import close


class Presence:
    """Whether each worker has left for good; a worker that comes again is there again.

    Args:
      target: of a session with the server.
      workers: how many there are.
    """

    def __init__(self, target: str, workers: int):
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device("/device:CPU:0"):
            self._left = ResourceVariable(
                tf.zeros([workers], tf.int32), name="left", trainable=False
            )
            self._begin = self._left.initializer
            self._is_begun = self._left.is_initialized()
            self._present = self._left.read_value()
            self._who = tf.compat.v1.placeholder(tf.int32, [])
            self._what = tf.compat.v1.placeholder(tf.int32, [])
            self._tell = self._left.scatter_update(
                tf.IndexedSlices([self._what], [self._who]), name="tell"
            ).op
        self._session = tf.compat.v1.Session(target, graph=self._graph)

    def begin(self) -> None:
        """Says that nobody has left."""
        self._session.run(self._begin)

    def is_begun(self) -> bool:
        """Whether the server has said so."""
        return bool(self._session.run(self._is_begun))

    def tell(self, worker: int, has_left: bool) -> None:
        """Says whether a worker has left."""
        self._session.run(self._tell, {self._who: worker, self._what: int(has_left)})

    def left(self) -> list[int]:
        """Returns the workers that have left."""
        flags = self._session.run(self._present).tolist()
        return [worker for worker, has_left in enumerate(flags) if has_left]

    def all_have_left(self) -> bool:
        """Whether nobody is there any more."""
        return bool(self._session.run(self._present).all())

    def close(self) -> None:
        """Ends the connection."""
        close(self._session)
