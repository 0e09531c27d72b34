"""Dtypes of collectives: the accumulation dtypes of sums, and conversions to and from bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

# The dtype in which values of each dtype are summed.
_ACCUMULATION_DTYPES = {
    tf.float16: tf.float16,
    tf.float32: tf.float32,
    tf.float64: tf.float64,
    tf.int32: tf.int32,
    tf.int64: tf.int64,
    tf.bfloat16: tf.float32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.uint64: tf.int64,
}
_WORD_BYTES = 4


def accumulation_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype in which values of `dtype` are summed.

    >>> accumulation_dtype(tf.bfloat16).name
    'float32'

    Raises:
      ValueError: if values of `dtype` cannot be summed.
    """
    try:
        return _ACCUMULATION_DTYPES[dtype]
    except KeyError:
        raise ValueError(
            "The dtype of a sum over workers must be one of "
            f"{', '.join(known.name for known in _ACCUMULATION_DTYPES)}. Received: {dtype.name}. "
            "Cast the value to one of these."
        ) from None


def check_is_numeric(dtype: tf.DType) -> None:
    """Checks that values of a dtype can be exchanged.

    Raises:
      ValueError: if the dtype is string, variant or resource.
    """
    if dtype in (tf.string, tf.variant, tf.resource):
        raise ValueError(
            f"Workers can exchange numbers and booleans only. Received: {dtype.name}. Convert "
            "strings to numbers, for example by tf.io.decode_raw(..., tf.uint8)."
        )


def to_words(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor's bytes, padded with zeros, as an int32 vector.

    >>> to_words(tf.constant([True, False, True])).numpy().tolist()
    [65537]

    Raises:
      ValueError: if the tensor's dtype is string, variant or resource.
    """
    check_is_numeric(tensor.dtype)
    if tensor.dtype == tf.bool:
        tensor = tf.cast(tensor, tf.uint8)
    vector = tf.reshape(tensor, [-1])
    if tensor.dtype.size % _WORD_BYTES == 0:
        return tf.reshape(tf.bitcast(vector, tf.int32), [-1])
    content = tf.reshape(tf.bitcast(vector, tf.uint8), [-1])
    content = tf.pad(content, [[0, -tf.size(content) % _WORD_BYTES]])
    return tf.bitcast(tf.reshape(content, [-1, _WORD_BYTES]), tf.int32)


def element_bytes(dtype: tf.DType) -> int:
    """Returns the number of bytes of one value in `to_words`."""
    return 1 if dtype == tf.bool else dtype.size


def bytes_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the number of bytes of a tensor's values as an int64 scalar."""
    return tf.size(tensor, tf.int64) * element_bytes(tensor.dtype)


def to_bytes(words: tf.Tensor) -> tf.Tensor:
    """Returns the bytes of int32 values; the last dimension is four times as long."""
    content = tf.bitcast(words, tf.uint8)
    return tf.reshape(content, tf.concat([tf.shape(words)[:-1], [-1]], 0))


def from_bytes(content: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the vector of dtype `dtype` that bytes represent.

    >>> from_bytes(to_bytes(to_words(tf.constant([1.5, -2.0], tf.float64))), tf.float64).numpy()
    array([ 1.5, -2. ])
    """
    if dtype == tf.bool:
        return tf.cast(content, tf.bool)
    return tf.bitcast(content if dtype.size == 1 else tf.reshape(content, [-1, dtype.size]), dtype)


def all_reduce_by_dtype(
    tensors: Sequence[tf.Tensor],
    all_reduce: Callable[[list[tf.Tensor], tf.DType], Sequence[tf.Tensor]],
) -> list[tf.Tensor]:
    """Returns the sums of tensors over all workers, reduced in one group per dtype.

    >>> twice = lambda group, dtype: [2 * tensor for tensor in group]
    >>> tensors = [tf.constant(1, tf.int8), tf.constant(1.5), tf.constant(3, tf.int32)]
    >>> [float(total) for total in all_reduce_by_dtype(tensors, twice)]
    [2.0, 3.0, 6.0]

    Args:
      tensors: tensors of any numeric dtypes.
      all_reduce: takes tensors of one dtype and that dtype; returns their sums over all workers.
    """
    groups: dict[tf.DType, list[int]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault(accumulation_dtype(tensor.dtype), []).append(position)
    sums: list[tf.Tensor] = list(tensors)
    for dtype, positions in groups.items():
        group = [tf.cast(tensors[position], dtype) for position in positions]
        for position, total in zip(positions, all_reduce(group, dtype), strict=True):
            sums[position] = tf.cast(total, tensors[position].dtype)
    return sums


def all_reduce_as_vector(
    tensors: Sequence[tf.Tensor], all_reduce: Callable[[tf.Tensor], tf.Tensor]
) -> list[tf.Tensor]:
    """Returns the sums of tensors of one dtype over all workers, reduced as one vector.

    Args:
      tensors: tensors of any shapes.
      all_reduce: takes a vector; returns its sum over all workers, of the same length.
    """
    vectors = [tf.reshape(tensor, [-1]) for tensor in tensors]
    if len(vectors) == 1:
        return [reshape_like(tensors[0], all_reduce(vectors[0]))]
    total = all_reduce(tf.concat(vectors, 0))
    parts = tf.split(total, tf.stack([tf.size(vector) for vector in vectors]))
    return [reshape_like(tensor, part) for tensor, part in zip(tensors, parts, strict=True)]


def reshape_like(tensor: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """Returns the values of a vector in the shape of a tensor."""
    return tf.ensure_shape(tf.reshape(vector, tf.shape(tensor)), tensor.shape)
