"""The base class of update modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from strategies.ps.connection import ServerConnection, ServerGroup
from strategies.ps.push import Push
from strategies.ps.server_program import StepProgram
from strategies.ps.updates import VariableUpdate
from strategies.ps.variables import PulledRows, SharedVariable

# Returns the new values of variables, as tensors of the graph in which it is called.
NewValues = Callable[[], Sequence[tuple[SharedVariable, tf.Tensor | PulledRows]]]
# Applies updates on the servers.
PushAndPull = Callable[[Sequence[VariableUpdate]], NewValues]


class Mode:
    """When a worker's updates are sent, and which values its next step uses.

    All differences between the modes are here; the rest of the package uses a mode's attributes,
    and never its name. By default, a step waits until the servers have made its updates, and the
    next step uses the new values.

    Args:
      servers: the servers of the job.

    Attributes:
      in_step: whether all workers take the same steps together. If not, workers must not wait for
        each other in a step, so the strategy's own collectives are those of a single worker.
      has_local_optimizer: whether each worker updates its copies of the variables with an
        optimizer of its own, and the servers only add up the workers' progress.
      row_steps: the number of steps between two exchanges of the embedding rows that a worker
        trains itself; None if the servers train them.
      row_cache: how many of these rows a worker keeps after an exchange; None keeps those that it
        has used since the exchange before.
      settings: the names of the options that apply to this mode alone, which are also keyword
        arguments of its class.
    """

    in_step: ClassVar[bool] = False
    has_local_optimizer: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()
    row_steps: int | None = None
    row_cache: int | None = None

    def __init__(self, servers: ServerGroup):
        self._servers = servers

    @property
    def present_workers(self) -> int:
        """The number of workers by which an exchange divides what a worker has changed."""
        return self._servers.size

    def step(self, program: StepProgram, push: Push) -> list[np.ndarray] | None:
        """Takes a step's updates; returns the values for the next step, or None to keep them."""
        return self._collect(lambda server: program.push_and_pull(push, server))

    def exchange(self, variables: Sequence[SharedVariable], push_and_pull: PushAndPull) -> None:
        """Counts a step of a local optimizer, and exchanges the progress if that is due.

        Args:
          variables: the variables that the step has changed.
          push_and_pull: applies updates on the servers and returns how to get the new values.
        """
        raise NotImplementedError

    def mark_unsent(self, send: Callable[[], None], is_unsent: bool) -> None:
        """Records whether there are changes of rows that `drain` must send; see `row_steps`.

        Args:
          send: sends the changes.
          is_unsent: whether there are any.
        """
        raise NotImplementedError

    def drain(self) -> None:
        """Waits until all updates have been sent; by default, none is pending after a step."""

    def forget_pulled(self) -> None:
        """Discards pulled values that no step has used yet, because they are outdated.

        By default there are none: the step that pulls values also uses them.
        """

    def _collect(
        self, call: Callable[[ServerConnection], Sequence[np.ndarray]]
    ) -> list[np.ndarray]:
        """Returns the results of a call with each server, one after the other, as one list."""
        return [vector for vectors in self._servers.each(call) for vector in vectors]
