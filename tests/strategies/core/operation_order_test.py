"""Blocking exchanges wait for what can be computed before them, and functions compute the same."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.collectives.ordered_calls import OrderedCalls, calls_of
from strategies.core import operation_order
from strategies.core.operation_order import compute_before_exchanges

CPU = "/device:CPU:0"
KINDS = st.sampled_from(["compute", "call", "assign", "read", "branch"])
PROGRAMS = st.lists(st.tuples(KINDS, st.integers(0, 9), st.integers(0, 9)), max_size=20)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operation_order, "inter_op_threads", lambda: 1)
        yield


def _ancestors(operation: tf.Operation) -> set[tf.Operation]:
    found, open_ends = set(), [operation]
    while open_ends:
        each = open_ends.pop()
        for source in {tensor.op for tensor in each.inputs}.union(each.control_inputs) - found:
            found.add(source)
            open_ends.append(source)
    return found


def _trace(step: Callable[[], tf.Tensor], devices=(CPU,)) -> list[set[str]]:
    """Returns the types of the operations that each call in a step depends on."""

    @tf.function
    def ordered():
        with compute_before_exchanges(devices):
            return step()

    graph = ordered.get_concrete_function().graph
    return [{each.type for each in _ancestors(call)} for call in calls_of(graph)]


def _step(calls: OrderedCalls, variable: tf.Variable) -> Callable[[], tf.Tensor]:
    """Returns a step of which sine can be computed before its two calls, cosine before the second.

    The hyperbolic sine depends on both of them, and the exponential function is not needed.
    """

    def step():
        start = tf.constant([1.0])
        (first,) = calls.call(lambda value: [value], [start], [tf.float32])
        tf.exp(start)
        between = tf.cos(first)
        (second,) = calls.call(lambda value: [value], [first], [tf.float32])
        variable.assign(tf.sinh(second) + between + tf.sin(start))
        return tf.constant(0)

    return step


def test_calls_wait_for_what_can_be_computed_and_is_needed():
    step = _step(OrderedCalls(), tf.Variable([0.0]))
    first, second = _trace(step)
    of_interest = {"Sin", "Cos", "Sinh", "Exp"}
    assert first & of_interest == {"Sin"} and second & of_interest == {"Sin", "Cos"}


@pytest.mark.parametrize(
    ("threads", "devices"),
    [(2, [CPU]), (1, ["/device:GPU:0"]), (1, [CPU, "/device:CPU:1"])],
    ids=["two threads", "a GPU", "two replicas"],
)
def test_calls_do_not_wait_if_something_else_can_run_meanwhile(monkeypatch, threads, devices):
    monkeypatch.setattr(operation_order, "inter_op_threads", lambda: threads)
    first, second = _trace(_step(OrderedCalls(), tf.Variable([0.0])), devices)
    assert "Sin" not in first and not {"Sin", "Cos"} & second


def _run(program, calls, variables) -> list[tf.Tensor]:
    """Runs a program: each instruction takes an earlier value and a variable, by number."""
    values = [tf.constant(1.0)]
    for kind, number, which in program:
        value, variable = values[number % len(values)], variables[which % len(variables)]
        if kind == "compute":
            values.append(value * 0.5 + 1.0)
        elif kind == "call":
            call = calls[which % 2].call
            values += call(lambda value: [value * np.float32(0.75)], [value], [tf.float32])
        elif kind == "assign":
            variable.assign(value)
        elif kind == "read":
            values.append(variable + 1.0)
        else:
            values.append(tf.cond(value > 1.5, lambda v=variable: v * 0.5, lambda v=value: v))
    return values


@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_any_program_computes_what_it_does_eagerly(program):
    expected = [tf.Variable(0.0) for _ in range(3)]
    variables = [tf.Variable(0.0) for _ in range(3)]
    values = _run(program, [OrderedCalls(), OrderedCalls()], expected)
    calls = [OrderedCalls(), OrderedCalls()]

    @tf.function(autograph=False)
    def ordered():
        with compute_before_exchanges([CPU]):
            return _run(program, calls, variables)

    results = ordered()
    assert [float(each) for each in results] == [float(each) for each in values]
    assert [float(each) for each in variables] == [float(each) for each in expected]


def test_a_loop_of_tensorflow_1_cannot_be_waited_for():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.disable_control_flow_v2()
        try:
            calls = OrderedCalls()
            with compute_before_exchanges([CPU]):
                (end,) = tf.while_loop(lambda i: i < 3, lambda i: [i + 1], [tf.constant(0)])
                called = calls.call(lambda value: [value], [tf.constant(1)], [tf.int32])
                checked = tf.debugging.Assert(end > 0, [end])
        finally:
            tf.compat.v1.enable_control_flow_v2()
        session.run(tf.compat.v1.global_variables_initializer())
        session.run([called, checked])
