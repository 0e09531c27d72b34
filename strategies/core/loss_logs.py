"""Corrects the losses in Keras's logs: sums, and means over parts of different sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.compat.keras_losses import LossLog, divided_value, loss_log_of
from strategies.compat.tensorflow import is_of_running_function
from strategies.core.loss_graph import LOSS_LOGS
from strategies.core.step_inputs import StepInputs


class LossLogs:
    """Makes the losses in logs equal to those of one process, however examples are distributed.

    [Note: logged losses]
    One process logs a mean over examples: a batch of n examples and loss L adds L * n, and n to the
    count. Of N replicas, one with n_r examples and loss L_r adds N * L_r * n_r. If the loss is a
    mean M_r, Keras has divided it by N, so each replica adds M_r * n_r, which is L * n in all. If
    it is a sum, L is the sum of all L_r, and each replica should add L_r * n. This is equal to what
    it adds only if n = N * n_r.

    Keras 3 logs the losses of single outputs differently if it does not know the size of the batch
    when it traces the step: as a mean over batches, to which a batch adds L, and 1 to the count.
    The replicas add N * L_r and 1 each. This is right for sums, but for a mean each replica should
    add M_r * N * n_r / n, and one without examples should count as well.
    """

    def __init__(self) -> None:
        self._step: _Step | None = None

    @contextlib.contextmanager
    def step(
        self, fn: Callable[..., Any], inputs: StepInputs, collectives: Collectives
    ) -> Iterator[None]:
        """Corrects what `fn`, which the block runs on all replicas, adds to logged losses.

        Args:
          fn: the function passed to `strategy.run`; ignored if it is not a step of a Keras model
            with losses that need a correction.
          inputs: the replicas' inputs.
          collectives: the collectives among the workers that take the step together.
        """
        log = loss_log_of(fn)
        if log is None or self._step is not None:
            yield
            return
        counts = inputs.counts()
        (total,) = collectives.all_reduce([tf.add_n(list(counts.values()))])
        self._step = _Step(log, counts, total, len(counts) * collectives.size)
        try:
            yield
        finally:
            self._step = None

    def note_divided(self) -> None:
        """Records the loss that Keras is about to divide by the number of replicas, if any."""
        if self._step is not None:
            value = divided_value()
            if value is not None and tf.distribute.get_replica_context() is not None:
                self._step.note_divided(value)

    def correction(self, variable: Any, added: Callable[[], tf.Tensor]) -> tf.Tensor | None:
        """Returns what the calling replica must add to a metric's variable beyond Keras's addition.

        Args:
          variable: the variable.
          added: returns the value that Keras adds to it.
        """
        step = self._running_step()
        if step is None:
            return None
        with tf.name_scope(LOSS_LOGS):
            return step.correction(variable, added)

    def counts_all(self, variable: Any) -> bool:
        """Returns whether replicas without examples also count in a metric's variable."""
        step = self._running_step()
        return step is not None and step.counts_all(variable)

    def _running_step(self) -> _Step | None:
        step, context = self._step, tf.distribute.get_replica_context()
        if step is None or context is None or not is_of_running_function(step.total):
            return None
        return step


class _Step:
    """The losses and numbers of examples of the running step.

    Args:
      log: the metrics in which Keras logs the losses.
      counts: the numbers of examples of this worker's replicas.
      total: the number of examples of all replicas of all workers.
      replicas: the number of replicas of all workers.
    """

    def __init__(self, log: LossLog, counts: dict[int, tf.Tensor], total: tf.Tensor, replicas: int):
        self._log = log
        self._counts = counts
        self.total = total
        self._replicas = replicas
        self._divided: dict[int, list[Any]] = {}
        self._corrections: dict[int, list[Any]] = {}

    def note_divided(self, value: Any) -> None:
        self._divided.setdefault(_replica(), []).append(value)

    def counts_all(self, variable: Any) -> bool:
        log = self._log
        return not log.is_weighted() and any(each.count is variable for each in log.losses())

    def correction(self, variable: Any, added: Callable[[], tf.Tensor]) -> tf.Tensor | None:
        replica = _replica()
        if variable is self._log.total:
            return self._correction_of_total(replica, added)
        loss = next((each for each in self._log.losses() if each.total is variable), None)
        if loss is None:
            return None
        examples, is_weighted = self._counts[replica], self._log.is_weighted()
        if loss.is_sum:
            # The total loss is always weighted by the number of examples.
            logged = added() if is_weighted else added() * examples
            correction = self._correction_of_sum(logged, examples)
            self._corrections.setdefault(replica, []).append(loss.weight * correction)
            return correction if is_weighted else None
        if is_weighted:
            return None
        share = self._replicas * tf.math.divide_no_nan(examples, self.total)
        return added() * tf.cast(share - 1, variable.dtype)

    def _correction_of_total(
        self, replica: int, added: Callable[[], tf.Tensor]
    ) -> tf.Tensor | None:
        if self._log.losses():
            corrections = self._corrections.pop(replica, [])
            return tf.add_n(corrections) if corrections else None
        # A single loss has no metric of its own. It is a sum, because it needs a correction, so the
        # values that Keras divided are regularizers and `add_loss`.
        logged, examples = added(), self._counts[replica]
        for value in self._divided.pop(replica, []):
            logged -= tf.cast(tf.reduce_sum(value), logged.dtype) * tf.cast(examples, logged.dtype)
        return self._correction_of_sum(logged, examples)

    def _correction_of_sum(self, logged: tf.Tensor, examples: tf.Tensor) -> tf.Tensor:
        """Returns the difference from N * L_r * n_r, which Keras logs for a sum, to L_r * n."""
        assumed = self._replicas * examples
        return logged * tf.cast(tf.math.divide_no_nan(self.total - assumed, assumed), logged.dtype)


def _replica() -> int:
    """Returns the number of the calling replica among those of this worker."""
    context = tf.distribute.get_replica_context()
    extended: Any = context.strategy.extended
    return int(extended.local_replica())
