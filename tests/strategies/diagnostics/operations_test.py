"""The latest operations of a worker, eager and in functions."""

import itertools

import pytest
import tensorflow as tf

from strategies.collectives.base import LocalCollectives, StreamKeeper
from strategies.collectives.ordered_calls import OrderedCalls
from strategies.diagnostics.operations import KEPT, OperationTracker, WatchedCollectives


@pytest.fixture
def operations():
    return OperationTracker()


def test_operations_of_all_kinds_are_kept_with_their_times(operations):
    collectives = WatchedCollectives(LocalCollectives(), operations)

    @tf.function
    def step(x):
        return collectives.all_reduce([x])[0] + collectives.all_gather(x)

    kinds = [(2, "all_reduce"), (3, "all_gather")]
    collectives.broadcast(tf.constant(1.0))
    for _ in range(3):
        step(tf.ones([2]))
    with operations.track_step("update"):
        (*ended, running) = operations.latest()
    assert [(each.stream, each.number, each.name) for each in ended] == [
        (0, 1, "broadcast"),
        *((n, m, f"{kind} of 8 bytes") for m in (1, 2, 3) for n, kind in kinds),
    ]
    assert running[:3] == (1, 1, "update") and running.end is None
    times = [time for each in ended for time in (each.begin, each.end)]
    assert all(first <= second for first, second in itertools.pairwise(times))


class _Calling(LocalCollectives, StreamKeeper):
    """Sums by calls of Python, in the training steps alone."""

    def __init__(self, calls_python=True):
        StreamKeeper.__init__(self)
        self.calls_python = calls_python
        self._calls = OrderedCalls()

    def new_stream(self):
        return _Calling(calls_python=False)

    def all_reduce(self, tensors):
        return [self._calls.call(lambda x: [x], [each], [each.dtype])[0] for each in tensors]


def test_exchanges_by_calls_of_python_are_recorded_there(operations):
    collectives = WatchedCollectives(_Calling(), operations)
    background = collectives.new_stream()

    @tf.function
    def step(x):
        background.all_reduce([x])
        return collectives.all_reduce([x, x])

    step(tf.ones([2]))
    assert operations.begun() == [0, 2, 1]
    found = [(each.stream, each.number, each.name) for each in operations.latest()]
    in_python = [(1, 1, "all_reduce of 16 bytes"), (1, 2, "all_reduce of 16 bytes")]
    assert sorted(found) == [*in_python, (2, 1, "all_reduce of 8 bytes")]
    graph = step.get_concrete_function(tf.ones([2])).graph
    records = [each for each in graph.get_operations() if each.type == "ResourceScatterUpdate"]
    assert len(records) == 1  # background's


def test_only_the_latest_are_kept(operations):
    collectives = WatchedCollectives(LocalCollectives(), operations)

    @tf.function
    def steps():
        for _ in tf.range(KEPT + 7):
            collectives.all_reduce([tf.constant(1.0)])

    steps()
    latest = operations.latest()
    assert [each.number for each in latest] == list(range(8, KEPT + 8))
    for _ in range(KEPT):
        collectives.broadcast(tf.constant(1.0))
    assert {each.name for each in operations.latest()} == {"broadcast"}


def test_an_operation_that_runs_in_a_function_is_known_by_its_kind(operations):
    class Looking(LocalCollectives):
        def all_reduce(self, tensors):
            seen = tf.numpy_function(look, [], tf.float64)
            with tf.control_dependencies([seen]):
                return list(map(tf.identity, tensors))

    latest = []

    def look():
        latest.extend(operations.latest())
        return 0.0

    tf.function(WatchedCollectives(Looking(), operations).all_reduce)([tf.constant(1.0)])
    assert latest == [(2, 1, "all_reduce", None, None)]


def test_the_exchanges_of_steps_are_those_after_the_first_of_each_function(operations):
    collectives = WatchedCollectives(LocalCollectives(), operations)
    background = collectives.new_stream()

    @tf.function
    def step(x):
        background.all_reduce([x])
        return collectives.all_reduce([x])[0]

    assert operations.exchanges().shape == (0, 4)
    collectives.broadcast(tf.constant(1.0))
    for size in (1, 1, 1, 2, 2):  # traced twice
        step(tf.ones([size]))
    for _ in range(2):
        with operations.track_step("update"):
            pass
    exchanges = operations.exchanges()
    assert exchanges[:, :2].tolist() == [[1, 2], [3, 2], [3, 3], [3, 5]]
    assert (exchanges[:, 2] <= exchanges[:, 3]).all()
