"""Partitioned variables, which act as a whole when they are read and as a part during an update.

Optimizer state that is sharded over workers must look whole to Keras, which builds, saves and
restores it by the shape of the model's variable. So a variable acts as one of its parts while that
part is in view, and as the whole otherwise; see [Note: an active view] in active_view.py. Only
element-wise optimizers can update a part without the rest (`optimizer_traits.py`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import VARIABLE_VALUE_KEY, unique_id
from strategies.utils.partitioning import part_bounds
from strategies.variables.active_view import ActiveView


@dataclass(frozen=True)
class PartitionSpec:
    """Even partition of tensors of one shape, by rows, or by elements if there are too few rows.

    If it does not divide evenly, the first parts have one more row or element than the others.

    >>> PartitionSpec((5, 3), 2).sizes, PartitionSpec((5, 3), 2).shape_of(1)
    ((3, 2), (2, 3))
    >>> PartitionSpec((3, 2, 2), 4).sizes, PartitionSpec((3, 2, 2), 4).shape_of(0)
    ((3, 3, 3, 3), (3,))
    >>> spec = PartitionSpec((5, 3), 2)
    >>> spec.part(tf.reshape(tf.range(15), [5, 3]), 1).numpy().tolist()
    [[9, 10, 11], [12, 13, 14]]

    Attributes:
      shape: shape of the tensors.
      count: number of parts.
    """

    shape: tuple[int, ...]
    count: int

    @property
    def by_rows(self) -> bool:
        """Whether parts consist of whole rows, and so have the rank of the whole."""
        return len(self.shape) > 0 and self.shape[0] >= self.count

    @property
    def sizes(self) -> tuple[int, ...]:
        """The first dimension of each part."""
        units = self.shape[0] if self.by_rows else math.prod(self.shape)
        bounds = (part_bounds(units, number, self.count) for number in range(self.count))
        return tuple(stop - start for start, stop in bounds)

    def shape_of(self, number: int) -> tuple[int, ...]:
        """Returns the shape of a part."""
        return (self.sizes[number], *(self.shape[1:] if self.by_rows else ()))

    def part(self, value: Any, number: int) -> Any:
        """Returns one part of a tensor or of a sparse gradient (`tf.IndexedSlices`)."""
        begin, size = sum(self.sizes[:number]), self.sizes[number]
        if isinstance(value, tf.IndexedSlices) and self.by_rows:
            # The part's own rows, counted from its first one.
            indices = value.indices - tf.cast(begin, value.indices.dtype)
            sliced = (indices >= 0) & (indices < tf.cast(size, indices.dtype))
            return tf.IndexedSlices(
                tf.boolean_mask(value.values, sliced),
                tf.boolean_mask(indices, sliced),
                tf.constant(self.shape_of(number), indices.dtype),
            )
        value = tf.convert_to_tensor(value)
        value = value if self.by_rows else tf.reshape(value, [-1])
        return value[begin : begin + size]

    def concatenate_parts(self, joined: tf.Tensor) -> tf.Tensor:
        """Returns the whole tensor from its parts, concatenated along the first axis."""
        return tf.reshape(joined, self.shape)


class Partition:
    """The parts of one variable and the part in view.

    Args:
      spec: specification of the partition.
      numbers: numbers of the parts that this process holds.
      join: function from this process's parts to all parts, concatenated along the first axis.
      written: function that returns which of `numbers` an assignment writes if no part is in view;
        other replicas write the other parts. None writes all of `numbers`.
    """

    def __init__(
        self,
        spec: PartitionSpec,
        numbers: Sequence[int],
        join: Callable[[list[tf.Tensor]], tf.Tensor],
        written: Callable[[], Sequence[int]] | None = None,
    ):
        self.spec = spec
        self.numbers = tuple(numbers)
        self.join = join
        self.written = written or (lambda: self.numbers)
        self._active: ActiveView[int] = ActiveView()

    @property
    def in_view(self) -> int | None:
        """The number of the part in view; None if the whole is in view."""
        return self._active.current

    def show_part(self, number: int) -> AbstractContextManager[None]:
        """Makes the variables of this partition act as one of their parts while the block runs."""
        return self._active.activate(number)


class _Readable(tf.Variable):
    """Base class of variables composed of other variables; subclasses have `value` and `assign`."""

    def __init__(self, name: str, dtype: tf.DType):
        self._given_name = name if ":" in name else f"{name}:0"
        self._given_dtype = dtype

    def value(self) -> tf.Tensor:
        """Returns the value in view."""
        raise NotImplementedError

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Sets the value in view."""
        raise NotImplementedError

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.value(), dtype, name=name)

    def __array__(self, dtype: Any = None) -> Any:
        return np.asarray(self.numpy(), dtype)

    def read_value(self) -> tf.Tensor:
        """Returns the value in view."""
        return self.value()

    def numpy(self) -> Any:
        """Returns the value in view as a NumPy array."""
        return self.value().numpy()

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds to the value in view."""
        return self.assign(self.value() + delta)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtracts from the value in view."""
        return self.assign(self.value() - delta)

    def scatter_add(self, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        """Adds to rows of the value in view."""
        return self._scatter(tf.tensor_scatter_nd_add, sparse_delta)

    def scatter_sub(self, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        """Subtracts from rows of the value in view."""
        return self._scatter(tf.tensor_scatter_nd_sub, sparse_delta)

    def scatter_update(self, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        """Sets rows of the value in view."""
        return self._scatter(tf.tensor_scatter_nd_update, sparse_delta)

    def _scatter(self, operation: Callable[..., tf.Tensor], rows: tf.IndexedSlices) -> Any:
        return self.assign(operation(self.value(), rows.indices[:, None], rows.values))

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the elements."""
        return self._given_dtype

    @property
    def name(self) -> str:
        """The name of the variable."""
        return self._given_name

    @property
    def trainable(self) -> bool:
        """False, so that no tape watches the variable."""
        return False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {tuple(self.shape)} {self.dtype.name}>"


class PartitionedVariable(_Readable):
    """Variable of which this process holds some parts, such as sharded optimizer state.

    Args:
      parts: parts of this process, in the order of `partition.numbers`.
      partition: partition of the variable.
      name: name that Keras requested.
    """

    def __init__(self, parts: Sequence[tf.Variable], partition: Partition, name: str):
        super().__init__(name, parts[0].dtype)
        self._parts = dict(zip(partition.numbers, parts, strict=True))
        self._partition = partition
        self._unique_id = f"{unique_id(parts[0])}_split"
        self._cached: tf.Tensor | None = None

    @property
    def parts(self) -> tuple[tf.Variable, ...]:
        """The parts of this process."""
        return tuple(self._parts.values())

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the part in view, or of the whole."""
        number, spec = self._partition.in_view, self._partition.spec
        return tf.TensorShape(spec.shape if number is None else spec.shape_of(number))

    @property
    def device(self) -> str:
        """The device of this process's first part."""
        return self.parts[0].device

    def value(self) -> tf.Tensor:
        """Returns the part in view, or the whole, which all workers must read together."""
        number, partition = self._partition.in_view, self._partition
        if number is not None:
            return self._parts[number].value()
        if self._cached is not None:
            return self._cached
        return partition.spec.concatenate_parts(
            partition.join([part.value() for part in self.parts])
        )

    @contextlib.contextmanager
    def cache_whole(self) -> Iterator[None]:
        """Caches the whole, so that this worker can read it by itself while the block runs."""
        self._cached = self.value()
        try:
            yield
        finally:
            self._cached = None

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Sets the part in view, or this process's parts of the whole."""
        value = tf.convert_to_tensor(value, self.dtype)
        number, partition = self._partition.in_view, self._partition
        if number is not None:
            self._parts[number].assign(value)
        else:
            for written in partition.written():
                self._parts[written].assign(partition.spec.part(value, written))
        return self

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {VARIABLE_VALUE_KEY: self.value()}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        return self.assign(restored_tensors[VARIABLE_VALUE_KEY])


class PartView(_Readable):
    """View of one part of a whole variable during an update; the caller writes the part back.

    Args:
      variable: the whole variable of one replica.
      spec: specification of the partition.
      number: number of the part.
      key: the `_unique_id` by which an optimizer identifies the variable.
    """

    def __init__(self, variable: tf.Variable, spec: PartitionSpec, number: int, key: str):
        super().__init__(variable.name, variable.dtype)
        self._variable = variable
        self._spec = spec
        self._number = number
        self._unique_id = key
        self._written: tf.Tensor | None = None

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the part."""
        return tf.TensorShape(self._spec.shape_of(self._number))

    @property
    def device(self) -> str:
        """The device of the whole variable."""
        return self._variable.device

    def value(self) -> tf.Tensor:
        """Returns the part with the changes of the update so far."""
        if self._written is None:
            return self._spec.part(self._variable.value(), self._number)
        return self._written

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Stores the value until the whole is written from the parts of all workers."""
        self._written = tf.convert_to_tensor(value, self.dtype)
        return self
