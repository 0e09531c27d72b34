"""The states of the workers, kept on each server."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable, Session
from strategies.utils.devices import HOST

# States of a worker. A killed worker stays PRESENT; a restarted one becomes PRESENT again. In an
# elastic job, a worker that was not started with the others is VACANT; once it is connected it is
# JOINING, and PRESENT when it begins to train. Nobody waits for workers from LEFT on.
AWAITED, PRESENT, LEFT, VACANT, JOINING = range(5)
SAME_SCRIPT = (
    "Workers and a chief must run the same script, each with its own TF_CONFIG. A task that starts "
    "tf.distribute.Server instead does not train: remove that branch from the script."
)


def worker_states(workers: int) -> ResourceVariable:
    """Creates a variable with the workers' states in the graph of a server."""
    with tf.name_scope("membership/"):
        return ResourceVariable(tf.zeros([workers], tf.int32), name="states", trainable=False)


def training_flags(workers: int) -> ResourceVariable:
    """Creates a variable of ones for workers that are in an epoch of an elastic job; else zeros."""
    with tf.name_scope("membership/"):
        return ResourceVariable(tf.zeros([workers], tf.int32), name="training", trainable=False)


def is_over(states: Sequence[int]) -> bool:
    """Returns whether all workers that ever connected have ended.

    >>> is_over([LEFT, LEFT, VACANT]), is_over([LEFT, PRESENT]), is_over([AWAITED, VACANT])
    (True, False, False)
    """
    return LEFT in states and not {AWAITED, PRESENT, JOINING}.intersection(states)


class Incarnation(NamedTuple):
    """A process of a server, of which there are several if the server is restarted.

    Attributes:
      number: a random number.
      age: how many seconds ago its state was saved when it began to serve; 0 for the first process.
    """

    number: int
    age: float


class Membership:
    """A connection that sets and reads the workers' states on a server.

    Args:
      target: the target of a session with the server.
      workers: the number of workers.

    Attributes:
      sessions: the sessions with the server, of which only the last one is in use.
    """

    def __init__(self, target: str, workers: int):
        self._target = target
        self._size = workers
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device(HOST):
            self._states = worker_states(workers)
            training = training_flags(workers)
            with tf.name_scope("membership/"):
                number = ResourceVariable(tf.zeros([], tf.int32), name="number", trainable=False)
                # The random number and the age of an `Incarnation`.
                incarnation, age = (
                    ResourceVariable(tf.zeros([], dtype), name=name, trainable=False)
                    for name, dtype in (("incarnation", tf.int64), ("age", tf.float64))
                )
                # How often each worker of an elastic job has reported that it is there.
                beats = ResourceVariable(
                    tf.zeros([workers], tf.int64), name="beats", trainable=False
                )
            self._new_number = tf.compat.v1.placeholder(tf.int32, [])
            self._new_incarnation = tf.compat.v1.placeholder(tf.int64, [])
            self._new_age = tf.compat.v1.placeholder(tf.float64, [])
            self._new_states = tf.compat.v1.placeholder(tf.int32, [workers])
            self._describe = [
                number.assign(self._new_number).op,
                incarnation.assign(self._new_incarnation).op,
                age.assign(self._new_age).op,
                training.assign(tf.zeros([workers], tf.int32)).op,
                beats.assign(tf.zeros([workers], tf.int64)).op,
            ]
            self._initialize = self._states.assign(self._new_states).op
            self._incarnation = [incarnation.read_value(), age.read_value()]
            self._number = number.read_value()
            self._is_initialized = self._states.is_initialized()
            self._present = self._states.read_value()
            self._worker = tf.compat.v1.placeholder(tf.int32, [])
            self._state = tf.compat.v1.placeholder(tf.int32, [])
            self._set_state = self._states.scatter_update(
                tf.IndexedSlices([self._state], [self._worker]), name="set_state"
            ).op
            one = tf.IndexedSlices(tf.constant([1], tf.int64), [self._worker])
            self._beat = beats.scatter_add(one, name="beat").op
            self._beats = beats.read_value()
        # Those before are closed at the end only: TensorFlow would wait for a server that is gone.
        self.sessions = [Session(target, graph=self._graph)]

    @property
    def _session(self) -> Session:
        return self.sessions[-1]

    def initialize(self, number: int, states: Sequence[int] = (), age: float = 0.0) -> None:
        """Initializes the states, by which workers know that the server is ready.

        Args:
          number: the server's number.
          states: the workers' states; by default, all workers are AWAITED.
          age: see `Incarnation`.
        """
        # The states come last: workers read the others as soon as the states are initialized.
        incarnation = secrets.randbits(62)
        self._session.run(
            self._describe,
            {
                self._new_number: number,
                self._new_incarnation: incarnation,
                self._new_age: age,
            },
        )
        self._session.run(
            self._initialize, {self._new_states: np.array(states or [AWAITED] * self._size)}
        )

    def reconnect(self) -> None:
        """Opens a new session, because a server that was restarted does not know the former one."""
        self.sessions.append(Session(self._target, graph=self._graph))

    def number(self) -> int:
        """Returns the number of the server that answers; its states must be initialized."""
        return int(self._session.run(self._number))

    def incarnation(self) -> Incarnation:
        """Returns which process of the server answers; its states must be initialized."""
        number, age = self._session.run(self._incarnation)
        return Incarnation(int(number), float(age))

    def is_initialized(self) -> bool:
        """Returns whether the server has initialized the states."""
        return bool(self._session.run(self._is_initialized))

    def set_state(self, worker: int, state: int) -> None:
        """Sets the state of a worker."""
        self._session.run(self._set_state, {self._worker: worker, self._state: state})

    def states(self) -> list[int]:
        """Returns the workers' states by rank."""
        states: list[int] = self._session.run(self._present).tolist()
        return states

    def beat(self, worker: int) -> None:
        """Reports that a worker of an elastic job is there."""
        self._session.run(self._beat, {self._worker: worker})

    def beats(self) -> list[int]:
        """Returns how often each worker has reported, by rank."""
        beats: list[int] = self._session.run(self._beats).tolist()
        return beats

    def workers(self, state: int) -> list[int]:
        """Returns the ranks of the workers in a state."""
        return [worker for worker, other in enumerate(self.states()) if other == state]
