"""Memory for the results of operations."""

from __future__ import annotations

import sys

import numpy as np

ALIGNMENT = 64  # of an array that TensorFlow can use without a copy
_BUFFERS = 8
# What `sys.getrefcount` returns in the loop below for a buffer that nothing else refers to: the
# list, the loop variable and the call's argument refer to it.
_UNUSED = 3


class BufferPool:
    """Memory for results, reused when nothing refers to the earlier results in it any more.

    Allocating megabytes takes longer than filling them, because the kernel creates each page.
    """

    def __init__(self) -> None:
        self._owners: list[np.ndarray] = []

    def take(self, length: int) -> np.ndarray:
        """Returns `length` uninitialized bytes that begin at a multiple of `ALIGNMENT`."""
        for owner in self._owners:
            # Each array in a buffer, and each tensor that shares its memory, refers to the buffer.
            if len(owner) == length + ALIGNMENT and sys.getrefcount(owner) == _UNUSED:
                return _align(owner, length)
        self._owners = [*self._owners[1 - _BUFFERS :], np.empty(length + ALIGNMENT, np.uint8)]
        return _align(self._owners[-1], length)


def _align(owner: np.ndarray, length: int) -> np.ndarray:
    start = -owner.ctypes.data % ALIGNMENT
    return owner[start : start + length]
