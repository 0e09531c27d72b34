"""Update modes, as the strategy knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.ps.push import Push
from strategies.ps.step_program import StepProgram
from strategies.ps.updates import VariableUpdate
from strategies.ps.variables import SharedVariable


class UpdateMode(Protocol):
    """An update mode: when a worker's updates are sent, and which values it goes on with."""

    def step(self, program: StepProgram, push: Push) -> list[np.ndarray] | None:
        """Takes a step's updates; returns the values to go on with, None for the present ones."""

    def drain(self) -> None:
        """Waits until all updates have been sent."""

    def forget_pulled(self) -> None:
        """Drops values to go on with that no step has taken yet, for there are newer ones."""


# Applies updates on the servers, and returns the new values of the variables.
PushAndPull = Callable[[Sequence[VariableUpdate]], Iterable[tuple[SharedVariable, tf.Tensor]]]


class LocalTraining(Protocol):
    """Exchange of progress between workers that have optimizers of their own."""

    def step(self, variables: Sequence[SharedVariable], push_and_pull: PushAndPull) -> None:
        """Counts a step that has updated variables, and exchanges them when it is due."""
