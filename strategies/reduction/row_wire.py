"""Form in which rows and gradients are exchanged."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_PER_WORD = 2  # numbers of 16 bits in an int32


class RowWire:
    """Encodes rows and gradients for an exchange, in 32 or in 16 bits for each value.

    bfloat16 values are exchanged as pairs in an int32, because not all collectives have bfloat16.
    The columns beyond the width, which hold factors of an L2 penalty, stay exact.

    >>> wire = RowWire(2, "bfloat16")
    >>> encoded = wire.encode(tf.constant([[1.5, 2.0]]))
    >>> encoded.dtype, encoded.shape.as_list(), wire.decode(encoded, 2).numpy().tolist()
    (tf.int32, [1, 1], [[1.5, 2.0]])

    Args:
      width: width of a row.
      dtype: "float32" or "bfloat16", in which values are rounded to the nearest number.
    """

    def __init__(self, width: int, dtype: str = "float32"):
        self._width = width
        self._is_short = dtype == "bfloat16"

    def encode(self, values: tf.Tensor) -> tf.Tensor:
        """Returns float32 values, [n, columns], as they are sent."""
        if not self._is_short:
            return values
        parts = [tf.cast(values[:, : self._width], tf.bfloat16)]
        extra = values.shape[1] - self._width
        if extra:
            halves = tf.bitcast(values[:, self._width :], tf.bfloat16)
            parts.append(tf.reshape(halves, [-1, _PER_WORD * extra]))
        if self._width % _PER_WORD:
            parts.append(tf.zeros([tf.shape(values)[0], 1], tf.bfloat16))
        numbers = tf.concat(parts, 1)
        words = tf.reshape(numbers, [-1, numbers.shape[1] // _PER_WORD, _PER_WORD])
        return tf.bitcast(words, tf.int32)

    def decode(self, sent: tf.Tensor, columns: int) -> tf.Tensor:
        """Returns the values that were sent, float32 [n, columns]."""
        if not self._is_short:
            return sent
        numbers = tf.reshape(tf.bitcast(sent, tf.bfloat16), [-1, _PER_WORD * sent.shape[1]])
        rounded = tf.cast(numbers[:, : self._width], tf.float32)
        extra = columns - self._width
        if not extra:
            return rounded
        halves = numbers[:, self._width : self._width + _PER_WORD * extra]
        exact = tf.bitcast(tf.reshape(halves, [-1, extra, _PER_WORD]), tf.float32)
        return tf.concat([rounded, exact], 1)

    def decode_array(self, sent: np.ndarray, columns: int) -> np.ndarray:
        """Returns the same as `decode`, for arrays.

        >>> wire = RowWire(1, "bfloat16")
        >>> encoded = wire.encode(tf.constant([[1.5, 0.1]]))  # with one exact column
        >>> wire.decode_array(encoded.numpy(), 2).tolist() == [[1.5, float(np.float32(0.1))]]
        True
        """
        if not self._is_short:
            return sent
        halves = np.ascontiguousarray(sent).view(np.uint16)
        rounded = (halves[:, : self._width].astype(np.uint32) << 16).view(np.float32)
        extra = columns - self._width
        exact = np.ascontiguousarray(halves[:, self._width : self._width + _PER_WORD * extra])
        return np.concatenate([rounded, exact.view(np.float32).reshape([len(sent), extra])], 1)

    @property
    def dtype(self) -> tf.DType:
        """The dtype of what is sent."""
        return tf.int32 if self._is_short else tf.float32
