"""Which workers of an elastic job are present, and how they divide the examples of an epoch.

[Note: workers that come and go]
TF_CONFIG has an address for each worker that a job may have. The servers know which of them are
there (membership.py), and the first server knows the rest, all of it under one lock:

* For each epoch of each dataset, the workers that divide its examples: those that are present, or
  were started with the job, when the first of them begins the epoch. All others that reach this
  epoch read this division. So each example belongs to one worker, although workers begin epochs at
  different times. A worker that is not in the division has empty batches; so has one that has
  joined since, in the place of a worker that is in it.
* Which workers are in an epoch. A worker that joins later becomes PRESENT only while another one
  is: an exchange of several operations, such as saving a checkpoint, is then not under way on any
  worker, because each operation waits for all that are present. Its own exchanges before that are
  those of a single worker.

A worker that joins begins with the epoch that the others are in, of which it has no examples. So it
meets the others where they meet at its end. It reads the data of earlier epochs first, because a
dataset is shuffled differently in each.

A worker that leaves tells the servers, and is in no division after that. Nobody trains on the rest
of its part of the epoch, nor on its part of later ones that others have begun already; it says so.
If the first server is restarted in place, divisions after its last save are made again. If workers
came or went since then, examples may then be trained on twice or not at all.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.compat.tensorflow import ResourceVariable
from strategies.ps.connection import ServerConnection, ServerUnavailableError
from strategies.ps.lock import Lock
from strategies.ps.membership import (
    AWAITED,
    JOINING,
    LEFT,
    PRESENT,
    Membership,
    training_flags,
    worker_states,
)
from strategies.utils.devices import HOST

BEAT_SECONDS = 5.0
_POLL_SECONDS = 0.5
_LOG_EVERY_SECONDS = 30.0
# Keys of the table of divisions: the number of the dataset, and of its epoch in the lower bits.
_EPOCH_BITS = 32


class Part(NamedTuple):
    """A worker's part of an epoch.

    Attributes:
      dataset: the number of the dataset.
      epoch: the epoch.
      steps: a description of the number of steps.
    """

    dataset: int
    epoch: int
    steps: str


class Presence:
    """This worker's view of an elastic job.

    Args:
      server: the first server.
      memberships: the connections to the states of workers on all servers.
      rank: this worker's rank.
      size: the number of workers that the job may have.
      joins: whether this worker joins a job that runs.

    Attributes:
      is_member: whether the others wait for this worker where workers meet.
      is_training: whether this worker is in an epoch.
      part: this worker's part of the epoch; None if it has no examples of it.
      workers: a variable with the number of workers that divide the epoch, float32.
    """

    def __init__(
        self,
        server: ServerConnection,
        memberships: Sequence[Membership],
        rank: int,
        size: int,
        joins: bool,
    ):
        self.is_member = not joins
        self.is_training = False
        self.part: Part | None = None
        self._rank = rank
        self._memberships = memberships
        self._server = server = server.new_connection()
        self._numbers = {"fit": 0, "loop": 0}
        # The keys of the divisions that were made before this worker joined.
        self._before: frozenset[int] = frozenset()
        self._is_busy = False
        self._ended = threading.Event()
        with server.building():
            self._states = server.build_once(functools.partial(worker_states, size))
            self._training = server.build_once(functools.partial(training_flags, size))
            self._divisions = tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.int64, value_dtype=tf.string, shared_name="elastic/divisions"
            )
            self._key = tf.compat.v1.placeholder(tf.int64, [])
            lock = Lock("elastic")
        self._begin = server.locked(self._begin_epoch, lock)[1]
        self._stop, _ = server.locked(lambda: self._set_training(0), lock)
        self._leave = server.locked(self._set_left, lock)[1]
        self._admit = server.locked(self._admit_if_safe, lock)[1]
        with server.building():
            self._keys = self._exported_keys()
        states = memberships[0].states()
        count = sum(state in (AWAITED, PRESENT, JOINING) for state in states)
        with tf.init_scope(), tf.device(HOST):
            self.workers = ResourceVariable(float(max(count, 1)), trainable=False)
        for membership in memberships:
            # One thread for each server, because a call to a server that is lost may not return.
            threading.Thread(
                target=self._beat, args=(membership,), name="beat", daemon=True
            ).start()

    # Operations on the server.

    def _begin_epoch(self) -> list[tf.Tensor]:
        """Returns the division of an epoch, made if there is none, and this worker's state."""
        states = self._states.read_value()
        # Those that were started with the job and are not connected yet have their parts, too.
        present = tf.cast(states < LEFT, tf.int32)
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=self._divisions, keys=[self._key], default_value=tf.constant("")
        )
        # An epoch that the others have skipped, because they resume a later one, is nobody's.
        number, keys = tf.constant(_EPOCH_BITS, tf.int64), self._exported_keys()
        shift = tf.bitwise.right_shift
        is_skipped = tf.reduce_any(
            tf.equal(shift(keys, number), shift(self._key, number)) & (keys > self._key)
        )
        present = tf.where(is_skipped, tf.zeros_like(present), present)
        new = tf.strings.reduce_join(tf.strings.as_string(present))
        division = tf.where(tf.equal(found, ""), new, found)
        insert = tf.raw_ops.LookupTableInsertV2(
            table_handle=self._divisions, keys=[self._key], values=division
        )
        with tf.control_dependencies([insert]):
            self._set_training(1)
        return [division[0], states[self._rank]]

    def _exported_keys(self) -> tf.Tensor:
        return tf.raw_ops.LookupTableExportV2(
            table_handle=self._divisions, Tkeys=tf.int64, Tvalues=tf.string
        ).keys

    def _set_training(self, flag: int) -> list[tf.Tensor]:
        self._training.scatter_update(tf.IndexedSlices([flag], [self._rank]))
        return []

    def _set_left(self) -> list[tf.Tensor]:
        self._states.scatter_update(tf.IndexedSlices([LEFT], [self._rank]))
        return [self._exported_keys()]

    def _admit_if_safe(self) -> list[tf.Tensor]:
        """Makes this worker PRESENT while another one trains; returns whether it is, and all keys.

        See [Note: workers that come and go].
        """
        states = self._states.read_value()
        present = tf.equal(states, PRESENT)
        trains = tf.reduce_any(present & tf.equal(self._training.read_value(), 1))
        is_alone = ~tf.reduce_any(present | tf.equal(states, AWAITED))
        is_safe = trains | is_alone
        state = tf.where(is_safe, PRESENT, JOINING)
        self._states.scatter_update(tf.IndexedSlices([state], [self._rank]))
        return [is_safe, self._exported_keys()]

    # This worker.

    def new_dataset(self, method: str) -> int:
        """Returns the number of a new dataset to train on, the same on all workers.

        Args:
          method: "fit" for a dataset that `fit` distributes, "loop" for any other.
        """
        number = self._numbers[method]
        self._numbers[method] += 1
        return 2 * number + (method == "loop")

    def newest(self, dataset: int) -> int:
        """Returns the newest epoch of a dataset that a worker has begun; -1 if there is none."""
        return _newest(self._server.run(self._keys, idempotent=True), dataset)

    def is_past(self, dataset: int) -> bool:
        """Returns whether the others have begun a later `fit` than that of this dataset."""
        keys = self._server.run(self._keys, idempotent=True)
        numbers = {int(key) >> _EPOCH_BITS for key in keys}
        return any(number > dataset and number % 2 == dataset % 2 for number in numbers)

    def begin_epoch(self, dataset: int, epoch: int) -> tuple[int, int] | None:
        """Begins an epoch; returns this worker's place and the number of workers that divide it.

        Returns None if this worker has no part of it.
        """
        key = np.int64(dataset << _EPOCH_BITS | epoch)
        text, state = self._server.run(self._begin, {self._key: key}, idempotent=True)
        if self.is_member and state != PRESENT:
            # It was suspended, and a server took it for one that is gone.
            logging.warning(
                "The others have continued without this worker, which joins them again."
            )
            self.is_member = False
        workers = [rank for rank, digit in enumerate(text.decode()) if digit == "1"]
        self.workers.assign(float(max(len(workers), 1)))
        if self._rank not in workers or int(key) in self._before:
            return None
        return workers.index(self._rank), len(workers)

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Keeps this worker from leaving while the block begins an epoch."""
        self._is_busy = True
        try:
            yield
            self.is_training = self.is_member
        finally:
            self._is_busy = False

    def stop_training(self) -> None:
        """Tells the first server that this worker is in no epoch, before it meets others."""
        if self.is_training:
            self.is_training = False
            self._server.run(self._stop, idempotent=True)

    def join(self, is_late: Callable[[], bool]) -> None:
        """Becomes a member, as soon as another worker trains.

        Args:
          is_late: returns whether to give up, because the others have gone on.
        """
        start = logged = time.monotonic()
        while True:
            if is_late():
                return
            is_admitted, keys = self._server.run(self._admit, idempotent=True)
            if is_admitted:
                break
            self._is_busy = False
            time.sleep(_POLL_SECONDS)
            self._is_busy = True
            if (now := time.monotonic()) - logged >= _LOG_EVERY_SECONDS:
                logged = now
                logging.warning(
                    "Waiting for the others to begin an epoch, to join them: %.0f s.", now - start
                )
        self.is_member, self._before = True, frozenset(map(int, keys))
        for membership in self._memberships[1:]:
            membership.set_state(self._rank, PRESENT)

    def leave(self, steps: int) -> str:
        """Tells the first server that this worker leaves; returns what nobody trains on then.

        Args:
          steps: the number of steps that this worker has made since `part` was set.
        """
        keys = self._server.run(self._leave, idempotent=True)[0]
        if not self.is_training or self.part is None:
            return ""
        following = _newest(keys, self.part.dataset) + 1
        return (
            f"leaves in epoch {self.part.epoch}, after {steps} of {self.part.steps} steps. Its "
            "other examples of this epoch are not trained on; the others train on all examples "
            f"from epoch {following} on"
        )

    def may_leave(self) -> bool:
        """Returns whether this worker takes part in no exchange with others at the moment."""
        return not self._is_busy and (self.is_training or not self.is_member)

    @property
    def state(self) -> int:
        """This worker's state while it runs, which a server that was restarted is told."""
        return PRESENT if self.is_member else JOINING

    def end(self) -> None:
        """Ends the reports to the servers."""
        self._ended.set()

    def _beat(self, membership: Membership) -> None:
        """Reports to a server that this worker is there, until the program ends."""
        while not self._ended.wait(BEAT_SECONDS):
            # A server that is lost is noticed by the calls of the training.
            with contextlib.suppress(ServerUnavailableError, tf.errors.OpError, RuntimeError):
                membership.beat(self._rank)


def _newest(keys: Sequence[int], dataset: int) -> int:
    epochs = [int(key) & ((1 << _EPOCH_BITS) - 1) for key in keys if key >> _EPOCH_BITS == dataset]
    return max(epochs, default=-1)
