"""A key of a graph that has what its function has captured."""

import functools
import gc

import pytest
import tensorflow as tf

from strategies.ps.connection import ServerConnection
from strategies.ps.function_key import function_key
from tf_config import Address


class Thing:
    def method(self):
        return self


def capture(*values):
    """Returns a function that has captured values."""
    return lambda: values


def nest(value):
    """Returns a function that has captured a function."""
    return capture(capture(value))


def apply_default(value):
    return lambda x, y=value: (x, y)


THING, OTHER = Thing(), Thing()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (capture(1, "a", None, tf.float32), capture(1, "a", None, tf.float32)),
        (capture([1, 2]), capture((1, 2))),
        (capture(THING), capture(THING)),
        (nest(THING), nest(THING)),
        (apply_default(THING), apply_default(THING)),
        (THING.method, THING.method),
        (functools.partial(capture, THING), functools.partial(capture, THING)),
        (capture(THING.method), capture(THING.method)),
    ],
)
def test_functions_that_have_captured_the_same_have_equal_keys(first, second):
    assert function_key(first) == function_key(second)
    assert hash(function_key(first)) == hash(function_key(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (capture(1), capture(2)),
        (capture(1), capture(True)),
        (capture(1), capture(1.0)),
        (capture(THING), capture(OTHER)),
        (capture([THING]), capture([OTHER])),
        (nest(THING), nest(OTHER)),
        (nest(1), capture(1)),
        (apply_default(1), apply_default(2)),
        (THING.method, OTHER.method),
        (functools.partial(capture, THING), functools.partial(capture, OTHER)),
        (functools.partial(capture, THING), functools.partial(nest, THING)),
        (lambda: THING, lambda: OTHER),
        (capture(tf.Variable(1.0)), capture(tf.Variable(1.0))),
    ],
)
def test_functions_that_have_captured_something_else_have_other_keys(first, second):
    assert function_key(first) != function_key(second)


def test_a_key_keeps_nothing_alive_and_no_later_object_is_taken_for_a_deleted_one():
    thing = Thing()
    key, address = function_key(capture(thing)), id(thing)
    del thing
    gc.collect()
    later = [Thing() for _ in range(100)]
    assert all(function_key(capture(each)) != key for each in later if id(each) == address)


def test_a_server_builds_a_graph_once_for_what_is_captured():
    server = ServerConnection(0, Address("127.0.0.1", 1))

    def build(value, state=()):
        return server.build_once(lambda: Thing() if value else None, state)

    assert build(1) is build(1)
    assert build(1) is not build(2)
    assert build(1) is not build(1, ["slot"])
    assert build(1, ["slot"]) is build(1, ["slot"])
