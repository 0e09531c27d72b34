"""Cache keys of graphs, derived from the functions that build them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable
from types import FunctionType, MethodType
from typing import Any

import tensorflow as tf

_BY_VALUE = frozenset({bool, int, float, str, bytes, type(None), tf.DType})
_HASH_OF_IDENTITY: Any = object.__hash__
_FUNCTIONS = frozenset({FunctionType, functools.partial})


class Identity:
    """The identity of an object, as a part of a key; does not keep the object alive if possible."""

    def __init__(self, value: Any):
        self._id = id(value)
        self._kept: Any = None
        self._reference: weakref.ref[Any] | None = None
        try:
            self._reference = weakref.ref(value)
        except TypeError:  # a number, for example, has no weak references
            self._kept = value

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity):
            return NotImplemented
        # Another object may have the address of a deleted one.
        return self._id == other._id and self.is_alive and other.is_alive

    @property
    def is_alive(self) -> bool:
        """Whether the object still exists."""
        return self._reference is None or self._reference() is not None


def function_key(function: Any) -> Hashable:
    """Returns a key that is equal for functions with the same code and the same captured objects.

    Numbers, strings and sequences are the same if they are equal, and other objects if they are
    identical. So a graph that was built by a function can be reused for another function with an
    equal key, as long as the captured objects have not changed.

    >>> def scale(factor):
    ...     return lambda x: x * factor
    >>> [function_key(scale(2)) == function_key(scale(factor)) for factor in (2, 3)]
    [True, False]

    Args:
      function: a Python function, a bound method, a `functools.partial` of one of them, or an
        object that a function has captured. If it captures a dictionary or array that is created
        anew for each call, the key differs each time.
    """
    cls = type(function)
    if cls in _BY_VALUE:
        return cls, function  # 1 equals True
    # Keys are computed in every step. Weak references are compared ten times as fast as an
    # `Identity`, and Python keeps one for each object, together with its hash.
    if cls.__hash__ is _HASH_OF_IDENTITY and cls.__weakrefoffset__ and cls not in _FUNCTIONS:
        return weakref.ref(function)
    if isinstance(function, (tuple, list)):
        return tuple(map(function_key, function))
    if isinstance(function, FunctionType) and not function.__kwdefaults__:
        captured = [function_key(cell.cell_contents) for cell in function.__closure__ or ()]
        defaults = map(function_key, function.__defaults__ or ())
        return weakref.ref(function.__code__), function.__module__, *captured, *defaults
    if isinstance(function, MethodType):
        return function_key(function.__func__), function_key(function.__self__)
    if isinstance(function, functools.partial):
        arguments = *function.args, *function.keywords.items()
        return tuple(map(function_key, (function.func, *arguments)))
    return Identity(function)
