"""The variables of a worker: mirrored variables that are synchronized with the servers.

A weight is an ordinary variable of the worker: the copy that the model computes with. Training
updates the servers' variable, and then the copy is updated. The optimizer's slot variables are on
the servers only. During an update on a server, each variable stands for the server's part of it: a
*view*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies.compat.call_stack import innermost_self
from strategies.compat.keras import is_optimizer
from strategies.compat.tensorflow import VARIABLE_VALUE_KEY, ResourceVariable
from strategies.ps.connection import ServerConnection
from strategies.ps.registry import RemoteVariable, VariableRegistry
from strategies.ps.row_log import NEVER
from strategies.utils.devices import HOST
from strategies.variables.active_view import ActiveView
from strategies.variables.scalars import MirroredVariable


class ServerView:
    """The values that variables stand for while a slice of a variable is updated on its server.

    Args:
      server: the server that holds the slice.
      remote: the variable.
      number: the number of the slice.
      local: returns a placeholder for a variable that is not on the servers.
    """

    def __init__(
        self,
        server: ServerConnection,
        remote: RemoteVariable,
        number: int,
        local: Callable[[Any], tf.Tensor],
    ):
        self.server = server
        self._remote = remote
        self._number = number
        self.local = local

    def part(self, remote: RemoteVariable) -> ResourceVariable:
        """Returns the part of a variable that is in view.

        Raises:
          ValueError: if the update cannot use the variable.
        """
        if remote.is_counter:
            return remote.parts[self.server.number]
        if remote.slices == self._remote.slices:
            return remote.parts[self._number]
        raise ValueError(
            "An update on a parameter server cannot use another variable than the one that it "
            f"updates and its slot variables. Received: an update of {self._remote.path!r} that "
            f"uses {remote.path!r}. Use an optimizer that updates each variable independently, "
            "such as Adam."
        )


# While a thread builds the update of a slice, its variables stand for the server's parts.
active_view: ActiveView[ServerView] = ActiveView()


def current_server() -> int | None:
    """Returns the number of the server on which the update runs; None outside updates."""
    view = active_view.current
    return None if view is None else view.server.number


class LocalVariable(MirroredVariable):
    """A worker's own variable, such as a learning rate, whose value is sent to the servers."""

    def _update(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        if active_view.current is not None:
            optimizer = innermost_self(is_optimizer)
            raise ValueError(
                "An update on a parameter server can only write one variable and its state. "
                f"Received: {type(optimizer).__name__ if optimizer else 'a function'}, which also "
                f"writes {self.name!r}. Use an optimizer such as Adam, or mode='geo', in which "
                "each worker has its own optimizer."
            )
        return super()._update(update_fn, value, **kwargs)

    def _get(self) -> Any:
        view = active_view.current
        return super()._get() if view is None else view.local(self)

    def value(self) -> Any:
        """Returns the value."""
        view = active_view.current
        return super().value() if view is None else view.local(self)


class LocalCounterVariable(LocalVariable):
    """A worker's own number of steps; a step without examples does not count."""

    def _update(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        update_fn = self.distribute_strategy.extended.skip_local_without_examples(update_fn)
        return super()._update(update_fn, value, **kwargs)


class _RemoteMirroredVariable(MirroredVariable):
    """A mirrored variable whose values are on the servers.

    Attributes:
      remote: the variable on the servers.
    """

    remote: RemoteVariable

    def _get(self) -> Any:
        view = active_view.current
        return self._read_outside() if view is None else view.part(self.remote)

    def _get_on_device_or_primary(self) -> Any:
        view = active_view.current
        return self._read_outside_on_device() if view is None else view.part(self.remote)

    @property
    def handle(self) -> Any:
        """The resource handle."""
        view = active_view.current
        return super().handle if view is None else view.part(self.remote).handle

    def _update(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        view = active_view.current
        if view is None:
            return self._update_outside(update_fn, value, kwargs)
        return update_fn(view.part(self.remote), value, **kwargs)

    def _read_outside(self) -> Any:
        return super()._get()

    def _read_outside_on_device(self) -> Any:
        return super()._get_on_device_or_primary()

    def _update_outside(
        self, update_fn: Callable[..., Any], value: Any, kwargs: dict[str, Any]
    ) -> Any:
        return super()._update(update_fn, value, **kwargs)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {VARIABLE_VALUE_KEY: tf.identity(self.read_value())}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        return self.assign(restored_tensors[VARIABLE_VALUE_KEY])


class SharedVariable(_RemoteMirroredVariable):
    """A weight, counter or state: this worker's copy of a variable on the servers."""

    _row_positions: ResourceVariable | None = None

    @property
    def row_positions(self) -> ResourceVariable:
        """For each slice, the position in its row log up to which the copy is current."""
        if self._row_positions is None:
            with tf.init_scope(), tf.device(HOST):
                never = tf.fill([len(self.remote.slices)], tf.constant(NEVER, tf.int64))
                self._row_positions = ResourceVariable(never, trainable=False)
        return self._row_positions

    def forget_row_positions(self) -> None:
        """Makes the next pull return all rows."""
        if self._row_positions is not None:
            never = tf.fill(self._row_positions.shape, tf.constant(NEVER, tf.int64))
            self._row_positions.assign(never, read_value=False)

    def _read_outside(self) -> Any:
        self.distribute_strategy.extended.check_read(self)
        return super()._read_outside()

    def _read_outside_on_device(self) -> Any:
        self.distribute_strategy.extended.check_read(self)
        return super()._read_outside_on_device()

    def _update_outside(
        self, update_fn: Callable[..., Any], value: Any, kwargs: dict[str, Any]
    ) -> Any:
        return self.distribute_strategy.extended.assign_everywhere(self, update_fn, value, kwargs)

    def update_copy(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        """Updates only the worker's copy."""
        return MirroredVariable._update(self, update_fn, value, **kwargs)  # noqa: SLF001


class CounterVariable(SharedVariable):
    """An integer that all workers increment; no increment is lost."""

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> Any:
        """Adds to the counter."""
        extended = self.distribute_strategy.extended
        if active_view.current is None and extended.is_stepping():
            return extended.count_up(self, delta)
        return super().assign_add(delta, use_locking, name, read_value)

    def assign(
        self, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True
    ) -> Any:
        """Assigns a value; in a step, adds the difference, which is what Keras 3 means."""
        extended = self.distribute_strategy.extended
        if active_view.current is None and extended.is_stepping():
            return extended.count_up(self, tf.cast(value, self.dtype) - self.values[0].read_value())
        return super().assign(value, use_locking, name, read_value)


class SlotVariable(_RemoteMirroredVariable):
    """A slot variable of an optimizer, held only on the servers, next to its variable."""

    registry: VariableRegistry

    def _read_outside(self) -> tf.Tensor:
        if not tf.executing_eagerly():
            raise NotImplementedError(
                "An optimizer's state on parameter servers can only be read during an update. "
                f"Received: {self.remote.path!r}, read in a function. Omit what reads it between "
                "steps (use_ema, gradient_accumulation_steps), or use mode='geo', in which each "
                "worker has its own optimizer."
            )
        # Otherwise a checkpoint would lack this worker's pending steps, and they would be applied
        # after an assignment.
        self.distribute_strategy.extended.drain()
        return tf.constant(self.registry.read([self.remote])[0], self.remote.dtype)

    def _read_outside_on_device(self) -> tf.Tensor:
        return self._read_outside()

    def value(self) -> Any:
        """Returns the value."""
        return tf.identity(self._get())

    def _update_outside(
        self, update_fn: Callable[..., Any], value: Any, kwargs: dict[str, Any]
    ) -> Any:
        kwargs.pop("read_value", None)
        copy = ResourceVariable(self._read_outside(), trainable=False)
        update_fn(copy, value, **kwargs)
        self.registry.write(self.remote, copy.numpy())
        return self

    @property
    def values(self) -> tuple[SlotVariable]:
        """The components: this variable itself, which stands for those on the servers."""
        return (self,)


def add(variable: ResourceVariable, delta: tf.Tensor) -> None:
    """Adds a delta to a variable."""
    variable.assign_add(delta, read_value=False)


def local_copy(variable: SharedVariable) -> tf.Tensor:
    """Returns the value of a worker's copy."""
    return variable.values[0].read_value()


@dataclass(frozen=True)
class PulledRows:
    """The rows of a slice of a variable that have changed since a worker last pulled it.

    Attributes:
      number: the number of the slice.
      rows: the values of the rows, with their numbers in the whole variable.
      since: the position of the slice's log after which they changed, int64 scalar.
      position: the position of the log when they were read, int64 scalar.
    """

    number: int
    rows: tf.IndexedSlices
    since: tf.Tensor
    position: tf.Tensor


def assign_copy(
    variable: SharedVariable, value: tf.Tensor | PulledRows, is_newest: bool = False
) -> None:
    """Assigns a value or rows to a worker's copy on all of its replicas.

    Args:
      variable: the variable.
      value: a whole value, or rows that were pulled.
      is_newest: whether a whole value is certainly newer than all rows that were pulled.
    """
    if isinstance(value, PulledRows):
        _assign_rows(variable, value)
        return
    if not is_newest:
        variable.forget_row_positions()
    for copy in variable.values:
        with tf.device(copy.device):
            copy.assign(value, read_value=False)


def _assign_rows(variable: SharedVariable, pulled: PulledRows) -> None:
    positions = variable.row_positions

    def assign() -> tf.Tensor:
        written = []
        for copy in variable.values:
            with tf.device(copy.device):
                written.append(
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=copy.handle,
                        indices=pulled.rows.indices,
                        updates=pulled.rows.values,
                    )
                )
        # If the step fails in between, the rows are pulled again.
        with tf.control_dependencies(written):
            positions.scatter_update(tf.IndexedSlices(pulled.position, pulled.number))
        return tf.constant(True)

    # If the rows are older than the copy, or do not include all rows that it lacks, they are not
    # assigned, and will be pulled again.
    current = positions.read_value()[pulled.number]
    is_next = (pulled.since <= current) & (current <= pulled.position)
    tf.cond(is_next, assign, lambda: tf.constant(False))


def check_is_not_slot(variable: Any) -> None:
    """Checks that a variable that is changed by itself is not an optimizer's state on the servers.

    Raises:
      ValueError: if it is an optimizer's state.
    """
    if isinstance(variable, SlotVariable):
        raise ValueError(
            "An optimizer's state on parameter servers can only change together with its variable. "
            f"Received: a change of {variable.remote.path!r} alone. Omit options that keep "
            "gradients between steps (gradient_accumulation_steps), or use mode='geo', in which "
            "each worker has its own optimizer."
        )


def reject_read(variable: SharedVariable) -> None:
    """Raises an error for a copy that is read after the step has changed the variable."""
    raise ValueError(
        "A variable on parameter servers cannot be read after it was changed in the same step, "
        "because its new value is known only after the step. Received: "
        f"{variable.remote.path!r}, read after a change, as SpectralNormalization does. Read it "
        "before the change, or use mode='geo', in which workers change their own copies."
    )


def reject_assignment(variable: SharedVariable) -> None:
    """Raises an error for a variable that is assigned after the step has changed it."""
    raise ValueError(
        "A variable on parameter servers cannot be assigned in the step that updates it, because "
        "its new value is known only after the step. Received: another new value for "
        f"{variable.remote.path!r} in the same step. Assign it outside of the step, or use "
        "mode='geo', in which workers change their own copies."
    )
