"""What an option of parameter servers changes, seen by what is sent to a server that is none."""

import re
import threading
import time
import types

import numpy as np
import pytest
import tf_keras

from strategies.parameter_server import create_update_mode
from strategies.ps.options import ParameterServerOptions
from strategies.ps.push import Push, merge_pushes
from strategies.ps.updates import VariableUpdate, check_applicable
from strategies.ps.variables import add


class StepProgram:
    """Notes what comes to a server, which is closed for as long as a test wants."""

    def __init__(self, is_mergeable=True):
        self.is_mergeable = is_mergeable
        self.open = threading.Event()
        self.began = threading.Event()
        self.changes = []  # steps of each change, and the sum of what they bring
        self.pulls = []  # after how many steps
        self.beside = []  # programs of the same variables

    def push(self, push, server):
        self.began.set()
        assert self.open.wait(30)
        self.changes.append((push.steps, int(push.dense[0][0][0])))

    def push_and_pull(self, push, server):
        self.push(push, server)
        return self.pull(push, server)

    def pull(self, push, server):
        self.pulls.append(self.steps)
        return [np.array([self.steps])]

    def shares_variables(self, other):
        return other in self.beside

    @property
    def steps(self):
        return sum(steps for steps, _ in self.changes)


class OneServer:
    def each(self, action):
        return [action(None)]


def push(value):
    return Push([[np.array([value])]], [[]], [], [])


def update_mode(**settings):
    return create_update_mode(ParameterServerOptions("async", **settings), OneServer())


def steps(update_mode, program, numbers):
    """Makes steps, each when the one before has been sent; returns what each goes on with."""
    found = []
    for number in numbers:
        fresh = update_mode.step(program, push(number))
        found.append(None if fresh is None else int(fresh[0][0]))
        update_mode.drain()
    return found


def test_an_error_in_the_background_is_raised_in_each_step_after_it():
    class Broken(StepProgram):
        def push(self, push, server):
            raise RuntimeError("the server is gone")

    mode, program = update_mode(send_queue_size=1), Broken()
    mode.step(program, push(1))
    with pytest.raises(RuntimeError, match="gone"):
        mode.drain()
    raised = []

    def make_steps():
        for _ in range(3):
            try:
                mode.step(program, push(1))
            except RuntimeError as error:
                raised.append(error)

    thread = threading.Thread(target=make_steps, daemon=True)
    thread.start()
    thread.join(10)
    assert len(raised) == 3


def test_steps_are_merged_without_overflow_in_half_precision():
    half = np.array([60000, -7], np.float16)
    pushes = [Push([[half, np.array([60000.0])]], [[]], [], []) for _ in range(3)]
    together = merge_pushes(pushes)
    assert together.steps == 3
    # The server multiplies by the number of steps what has come as float16.
    ((mean, total),) = together.dense
    assert mean.dtype == np.float16
    np.testing.assert_array_equal(mean, half)
    np.testing.assert_array_equal(total, [180000])


def test_servers_do_not_compile_updates_by_xla():
    optimizer = tf_keras.optimizers.Adam()
    optimizer.jit_compile = True  # as where there is a GPU

    def update_of(self):
        return lambda variable, gradient: self.update_step(gradient, variable)

    remote = types.SimpleNamespace(slices=[1])
    variable = types.SimpleNamespace(remote=remote)
    check_applicable([types.SimpleNamespace(fn=update_of(optimizer), variable=variable)])
    assert optimizer.jit_compile is False


@pytest.mark.parametrize(
    ("settings", "expected", "pulls"),
    [
        ({}, [None, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]),
        ({"pull_every": 3}, [None, None, None, 3, None, None, 6], [3, 6]),
    ],
)
def test_values_come_back_every_so_many_steps(settings, expected, pulls):
    program = StepProgram()
    program.open.set()
    assert steps(update_mode(**settings), program, range(7)) == expected
    assert program.pulls == pulls


@pytest.mark.parametrize(("is_beside", "expected"), [(True, [2]), (False, [1])])
def test_what_another_program_has_changed_is_pulled_again(is_beside, expected):
    first, second = StepProgram(), StepProgram()
    sending = update_mode()
    for program in (first, second):
        program.open.set()
    first.beside = [second] if is_beside else []
    steps(sending, first, [1])
    first.changes.append((1, 0))  # made by the second one, which shares the variables
    steps(sending, second, [1])
    assert steps(sending, first, [1]) == expected


def test_what_was_pulled_is_not_gone_on_with_where_there_are_newer_values():
    program = StepProgram()
    program.open.set()
    sending = update_mode()
    assert steps(sending, program, [1]) == [None]
    sending.forget_pulled()
    assert steps(sending, program, [1, 1]) == [None, 2]


ONE_BY_ONE = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6)]


@pytest.mark.parametrize(
    ("settings", "is_mergeable", "changes"),
    [
        ({"send_queue_size": 6}, True, ONE_BY_ONE),
        ({"max_merge": 3, "send_queue_size": 6}, True, [(1, 1), (3, 9), (2, 11)]),
        ({"max_merge": 9, "send_queue_size": 6}, True, [(1, 1), (5, 20)]),
        ({"max_merge": 9, "send_queue_size": 6}, False, ONE_BY_ONE),
    ],
)
def test_steps_that_wait_make_one_change_of_their_sum(settings, is_mergeable, changes):
    program = StepProgram(is_mergeable)
    sending = update_mode(**settings)
    sending.step(program, push(1))
    assert program.began.wait(30)
    for value in range(2, 7):
        sending.step(program, push(value))
    program.open.set()
    sending.drain()
    assert program.changes == changes


def assign(variable, value):
    variable.assign(value)


def apply(variable, gradient, learning_rate):
    variable.assign_sub(gradient * learning_rate)


@pytest.mark.parametrize(
    ("shape", "fn", "args", "transfers", "is_mergeable"),
    [
        ([3], add, [np.ones([3])], ["dense"], True),
        ([3], apply, [np.ones([3]), np.ones([])], ["dense", "replicated"], True),
        ([], apply, [np.ones([]), np.ones([])], ["dense", "replicated"], True),
        ([], apply, [np.ones([]), 0.1], ["dense", "fixed"], True),
        ([], add, [1.0], ["fixed"], False),
        ([3], apply, [np.ones([]), np.ones([])], ["replicated", "replicated"], False),
        ([3], assign, [np.ones([3])], ["dense"], False),
        ([], assign, [np.ones([])], ["dense"], False),
        ([3], lambda variable: variable.assign_sub(variable * 0.1), [], [], True),
    ],
)
def test_what_steps_bring_is_summed_where_it_can_be(shape, fn, args, transfers, is_mergeable):
    variable = types.SimpleNamespace(remote=types.SimpleNamespace(shape=tuple(shape)))
    update = VariableUpdate(variable, fn, (tuple(args), {}))
    assert [update.transfer(leaf).value for leaf in update.leaves] == transfers
    assert update.is_mergeable == is_mergeable


@pytest.mark.parametrize(
    ("settings", "waiting"),
    [({}, 1), ({"send_queue_size": 3}, 3), ({"max_merge": 2}, 4)],
)
def test_so_many_steps_wait_to_be_sent_and_the_next_one_waits_for_them(settings, waiting):
    program = StepProgram()
    sending = update_mode(**settings)
    made = []

    def train():
        for number in range(waiting + 2):
            sending.step(program, push(number))
            made.append(number)

    worker = threading.Thread(target=train, daemon=True)
    worker.start()
    until = time.monotonic() + 30
    while len(made) < waiting and time.monotonic() < until:
        time.sleep(0.01)
    worker.join(0.2)
    assert len(made) == waiting
    program.open.set()
    worker.join(30)
    sending.drain()
    assert len(made) == program.steps == waiting + 2


@pytest.mark.parametrize("cache", [None, 0, 7])
def test_the_number_of_rows_that_a_worker_keeps(cache):
    options = ParameterServerOptions("geo", geo_row_cache=cache)
    assert create_update_mode(options, None).row_cache == cache


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "asink"}, "'sync', 'async', 'half_async', 'geo'. Received: 'asink'"),
        ({"compression": "int8"}, "Received: 'int8'"),
        ({"placement": "spread"}, "Received: 'spread'"),
        ({"min_slice_size": 0}, "Received: 0"),
        ({"pull_every": 0}, "pull_every must be an integer >= 1. Received: 0"),
        ({"geo_steps": True}, "geo_steps must be an integer >= 1. Received: True"),
        ({"max_merge": 2, "mode": "geo"}, "max_merge=2 with mode='geo'"),
        ({"geo_row_cache": -1, "mode": "geo"}, "geo_row_cache must be an integer >= 0"),
        ({"geo_rows": "workers"}, "geo_rows must be 'local' or 'servers'. Received: 'workers'"),
        (
            {"geo_rows": "servers", "geo_row_cache": 9, "mode": "geo"},
            "geo_row_cache=9 with geo_rows='servers'",
        ),
        ({"geo_rows": "local"}, "geo_rows can only be used with mode='geo'"),
        ({"geo_steps": 2}, "geo_steps can only be used with mode='geo'. Received: geo_steps=2"),
    ],
)
def test_wrong_options_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ParameterServerOptions(**settings)
