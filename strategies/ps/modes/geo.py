"""GEO-SGD: local training whose progress is added to the servers every few steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.ps.connection import ServerGroup
from strategies.ps.modes.base import Mode, PushAndPull
from strategies.ps.updates import VariableUpdate
from strategies.ps.variables import SharedVariable, add, assign_copy, local_copy
from strategies.utils.devices import HOST


class Geo(Mode):
    """GEO-SGD: each of N workers adds 1/N of its progress to the servers' values.

    A worker trains its copy W with its own optimizer and keeps W', the value that it last had in
    common with the servers. At an exchange it sends delta = (W - W') / N, which the servers add to
    their value V; then W' becomes W' + delta, W becomes W + V - W', and W' becomes V. Each
    exchange thus multiplies the unsent progress by 1 - 1/N, no progress is lost, and with a single
    worker W equals V after each exchange. The algorithm is that of PaddlePaddle's GeoCommunicator.

    Steps are counted separately for each set of variables, because models that are trained in
    turn update different variables.

    In a job whose workers come and go, N is the number of workers that divide the epoch.

    Staleness: the values that a worker computes with lack none of its own steps. They lack up to
    `geo_steps` steps that another worker has not sent yet, and the steps that it has sent since
    this worker's last exchange.

    Embedding rows are exchanged by the same rule, except that a worker keeps only some of them; see
    [Note: rows of the mode "geo"] in embedding/shard/local_rows.py.

    Args:
      servers: the servers of the job.
      geo_steps: the number of steps between two exchanges of the same variables.
      geo_rows: "local" if workers train the rows of embeddings themselves, "servers" if the servers
        do.
      geo_row_cache: the number of rows of each table width that a worker keeps after an exchange;
        None keeps those that it has used since the exchange before.
    """

    has_local_optimizer = True
    settings = ("geo_steps", "geo_rows", "geo_row_cache")

    def __init__(
        self,
        servers: ServerGroup,
        geo_steps: int = 100,
        geo_rows: str = "local",
        geo_row_cache: int | None = None,
    ):
        super().__init__(servers)
        self._geo_steps = geo_steps
        self.row_steps = geo_steps if geo_rows == "local" else None
        self.row_cache = geo_row_cache
        # Functions that send changes of rows, in the order in which the first change was made.
        self._unsent: dict[Callable[[], None], None] = {}
        self._steps: dict[frozenset[str], ResourceVariable] = {}

    def exchange(self, variables: Sequence[SharedVariable], push_and_pull: PushAndPull) -> None:
        """Counts a step, and exchanges the variables if an exchange is due; see `Mode`.

        A variable's `base` is the W' of the rule above.
        """

        def exchange_deltas() -> tf.Tensor:
            deltas = [(local_copy(v) - v.base) / self._workers(v.dtype) for v in variables]
            updates = [
                VariableUpdate(v, add, ((delta,), {}))
                for v, delta in zip(variables, deltas, strict=True)
            ]
            for variable, delta in zip(variables, deltas, strict=True):
                variable.base.assign_add(delta, read_value=False)
            for variable, value in push_and_pull(updates)():
                assign_copy(variable, local_copy(variable) + value - variable.base)
                variable.base.assign(value, read_value=False)
            return tf.constant(True)

        steps = self._steps_of(variables).assign_add(1)
        tf.cond(steps % self._geo_steps == 0, exchange_deltas, lambda: tf.constant(False))

    def mark_unsent(self, send: Callable[[], None], is_unsent: bool) -> None:
        """Records whether there are changes of embedding rows to send; see `Mode`.

        The function is kept as long as there are, so that nothing is lost with a deleted model.
        """
        if is_unsent:
            self._unsent[send] = None
        else:
            self._unsent.pop(send, None)

    def drain(self) -> None:
        """Sends the changes of embedding rows, so that the servers have what was trained.

        Those of variables wait for the next exchange: what is saved is the worker's own copy.
        """
        for send in list(self._unsent):
            send()

    @property
    def present_workers(self) -> int:
        """The N of the rule above for an exchange of embedding rows."""
        presence = self._servers.presence
        return self._servers.size if presence is None else int(presence.workers.numpy())

    def _workers(self, dtype: tf.DType) -> int | tf.Tensor:
        """Returns the N of the rule above: in an elastic job, that of the epoch."""
        presence = self._servers.presence
        return self._servers.size if presence is None else tf.cast(presence.workers, dtype)

    def _steps_of(self, variables: Sequence[SharedVariable]) -> ResourceVariable:
        """Returns the counter of the steps that have changed exactly these variables."""
        names = frozenset(variable.remote.name for variable in variables)
        if names not in self._steps:
            with tf.init_scope(), tf.device(HOST):
                self._steps[names] = ResourceVariable(0, trainable=False, dtype=tf.int64)
        return self._steps[names]
