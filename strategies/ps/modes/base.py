"""The interfaces of update modes that the strategy uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.ps.push import Push
from strategies.ps.server_program import StepProgram
from strategies.ps.updates import VariableUpdate
from strategies.ps.variables import SharedVariable


class UpdateMode(Protocol):
    """An update mode: when a worker's updates are sent, and which values its next step uses."""

    def step(self, program: StepProgram, push: Push) -> list[np.ndarray] | None:
        """Takes a step's updates; returns the next step's values, or None to keep the present."""

    def drain(self) -> None:
        """Waits until all updates have been sent."""

    def forget_pulled(self) -> None:
        """Drops pulled values that no step has used yet, because they are outdated."""


# Applies updates on the servers and returns the new values of the variables.
PushAndPull = Callable[[Sequence[VariableUpdate]], Iterable[tuple[SharedVariable, tf.Tensor]]]


class LocalTraining(Protocol):
    """An exchange of progress between workers that each have their own optimizer."""

    def step(self, variables: Sequence[SharedVariable], push_and_pull: PushAndPull) -> None:
        """Counts a step that has updated variables, and exchanges them if an exchange is due."""
