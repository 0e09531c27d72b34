"""Workers that are in different operations: found, named, and ended only where that is sure."""

import dataclasses
import os
import socket
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives.base import LocalCollectives
from strategies.collectives.startup.rendezvous import serve
from strategies.diagnostics import peers
from strategies.diagnostics import watchdog as watchdog_module
from strategies.diagnostics.consistency import check_same_call
from strategies.diagnostics.operations import OperationTracker, WatchedCollectives
from strategies.diagnostics.watchdog import (
    _SCOPE,
    LOST_SECONDS,
    State,
    Watchdog,
    _shared_store,
    is_deadlocked,
    step_timeout_seconds,
    watch_seconds,
)
from tests.support.fakes import FakeWorker
from tf_config import Address, ClusterSpec, Task, local_cluster
from tf_config.launcher.progress_file import Sample
from tf_config.reachability import Reached
from tf_config.rendezvous.http_store import HttpStore, StoreServer, send_request

TASKS = [Task("worker", 0), Task("worker", 1)]
SPEC = ClusterSpec.from_dict({"worker": ["127.0.0.1:1", "127.0.0.1:2"]})
STEP = State("function", "all_reduce", 40.0, "fit(), train.py, line 3")
SAVE = State("eager", "all_gather number 7", 40.0, "save, train.py, line 5")


def told(other):
    """Returns the first of two workers; the other one brings a text."""
    return FakeWorker(others=lambda _, mine: [list(other.encode().ljust(mine.shape[1]))])


def test_workers_in_one_operation_go_on():
    check_same_call(told("fit: 3 steps"), "fit", "3 steps")


@pytest.mark.parametrize("other", ["fit: 4 steps", "evaluate: 3 steps", "barrier"])
def test_workers_in_two_operations_raise_and_name_them(other):
    with pytest.raises(ValueError, match=f"worker 0: fit: 3 steps; worker 1: {other}"):
        check_same_call(told(other), "fit", "3 steps")


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (STEP, State(ended=True), True),
        (State("function", "", 1.0), State(ended=True), False),  # their part may be on its way
        (STEP, SAVE, True),
        (SAVE, State("eager", "all_gather number 8", 40.0), True),
        (SAVE, SAVE, False),  # a slow network
        (STEP, STEP, False),  # a step that both still compute
        (STEP, State(), False),  # a callback, or tracing
        (STEP, State("eager", "all_gather number 7", 5.0), False),  # it has just come there
    ],
)
def test_only_a_wait_that_nothing_can_end_is_ended(mine, theirs, expected):
    assert is_deadlocked(mine, theirs, 30.0) is expected


@pytest.fixture
def store():
    address = local_cluster(workers=1).addresses[TASKS[0]]
    server = serve(StoreServer, address, TASKS[0])
    yield HttpStore(Address(address.host, address.port), "test")
    server.shutdown()
    server.server_close()


def watchdog(store, number, ends, seconds=30.0, **options):
    return Watchdog(store, SPEC, TASKS[number], OperationTracker(), seconds, ends.append, **options)


def test_who_waits_names_the_other_one_and_ends_where_it_has_ended(store, caplog):
    ends = []
    waiting, other = (watchdog(store, number, ends) for number in range(2))
    other._publish(State(place="train.py, line 9 (time.sleep(100))"))
    waiting.check_peers(STEP)
    waiting.check_peers(STEP)
    assert not ends
    (warning,) = caplog.messages
    assert "worker 0 has waited 40 s in all_reduce, in fit(), train.py, line 3" in warning
    assert "worker 1 is in train.py, line 9 (time.sleep(100))" in warning
    other._publish(SAVE)
    waiting.check_peers(STEP)
    other._publish(State(ended=True))
    waiting.check_peers(STEP)
    assert "worker 1 waits in save, train.py, line 5. All workers must call it" in ends[0]
    assert "worker 1 has ended. All workers must call it" in ends[1]


def test_who_has_ended_has_sent_its_part_of_what_it_began(store):
    ends = []
    first, second = (watchdog(store, number, ends) for number in range(2))
    with second.operations.track_eager("all_reduce"):
        pass
    second.start()
    second.leave()
    for number in (1, 2):
        with first.operations.track_eager("all_reduce"):
            pending = first.operations.pending()
            first.check_peers(State("eager", f"all_reduce number {number}", 40, pending=pending))
        assert bool(ends) is (number == 2)
    assert "worker 0 has waited 40 s in all_reduce number 2" in ends[0]


def test_who_has_ended_is_not_waited_for_without_end():
    mine = State("eager", "all_reduce number 1", LOST_SECONDS, pending=[(0, 1)])
    assert is_deadlocked(mine, State(ended=True, begun=[1]), 30.0)


def test_an_operation_that_ends_while_it_is_looked_at_is_no_wait(store, monkeypatch):
    ends = []
    waiting, other = (watchdog(store, number, ends) for number in range(2))
    other._publish(State(ended=True))
    operations, looked = waiting.operations, threading.Event()
    monkeypatch.setattr(operations, "waiting", lambda: ("eager", "all_reduce number 1", 40.0))
    monkeypatch.setattr(operations, "pending", lambda: looked.set() or [])
    waiting.start()
    assert looked.wait(10)
    waiting._thread.stop(10)
    assert not ends


def test_what_has_begun_and_not_ended_is_pending():
    operations = OperationTracker()
    graph = operations.add_graph_operations("all_reduce", in_step=True)
    graph.begin()
    begun = graph.begin()
    graph.end(*begun, "all_reduce")
    with operations.track_eager("broadcast"), operations.track_step("a push"):
        assert operations.pending() == [(0, 1), (1, 1), (2, 2)]
    graph.end(*begun, "all_reduce")
    assert operations.pending() == []
    assert operations.begun() == [1, 1, 2]


def test_the_first_worker_learns_for_whom_the_others_wait(store, monkeypatch):
    monkeypatch.setenv("KERAS_STRATEGIES_METRICS", "1")
    workers = [watchdog(store, number, []) for number in range(2)]
    for number, each in enumerate(workers):
        begin = np.arange(10) + 0.3 * number
        table = np.stack([np.full(10, 2.0), np.arange(10) + 1.0, begin, np.arange(10) + 0.9], 1)
        monkeypatch.setattr(each.operations, "exchanges", lambda table=table: table)
    for each in (*workers, *workers):
        each._report_exchanges()
    assert workers[0].samples() == [Sample("waited_seconds_total", 3.0, ("worker 1",))]
    assert workers[1].samples() == []
    assert workers[0]._wait_report.end_epoch().startswith("worker 1 caused 100% of the waits")


def test_who_ends_waits_until_the_others_have(store):
    first, second = (watchdog(store, number, []) for number in range(2))
    second._publish(State())
    for one in (first, second):
        one.start()
    leaving = threading.Thread(target=first.leave)
    leaving.start()
    leaving.join(timeout=0.5)
    assert leaving.is_alive()
    second.leave()
    leaving.join(timeout=10)
    assert not leaving.is_alive()


def test_a_forked_child_that_ends_is_no_worker_that_has_ended(store, monkeypatch):
    one = watchdog(store, 0, [])
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    one.leave()
    assert store.get(TASKS[0]) is None


def test_operations_are_seen_while_they_run():
    seen = []

    class Slow(LocalCollectives):
        def all_gather(self, tensor):
            if not tf.executing_eagerly():
                return tf.numpy_function(self.look, [tensor], tensor.dtype)
            return self.look(tensor)

        def look(self, tensor):
            seen.append(operations.waiting()[:2])
            return tensor

    operations = OperationTracker()
    collectives = WatchedCollectives(Slow(), operations)
    collectives.all_gather(tf.constant([1]))
    collectives.all_gather(tf.constant([1]))
    tf.function(collectives.all_gather)(tf.constant([1]))
    assert seen == [("eager", "all_gather number 1"), ("eager", "all_gather number 2"),
                    ("function", "all_gather")]  # fmt: skip
    assert operations.waiting() == ("", "", 0.0)


def test_a_wait_lasts_as_long_as_nothing_moves():
    operations = OperationTracker()
    with operations.track_eager("broadcast"):
        assert operations.waiting()[2] < 0.1
        time.sleep(0.2)
        assert operations.waiting()[2] >= 0.2


@pytest.mark.parametrize("given", ["0", "-1", "soon", "inf", ""])
@pytest.mark.parametrize(
    ("variable", "read"),
    [
        ("KERAS_STRATEGIES_WATCH_SECONDS", watch_seconds),
        ("KERAS_STRATEGIES_STEP_TIMEOUT", step_timeout_seconds),
    ],
)
def test_a_wrong_time_is_refused(variable, read, given):
    message = f"{variable} must be a number .* above 0. Received: '{given}'"
    with pytest.raises(ValueError, match=message):
        read({variable: given})


def test_a_wait_beyond_the_step_timeout_ends_all_workers(store):
    ends = []
    waiting, other = (watchdog(store, number, ends, step_timeout=35.0) for number in range(2))
    other._publish(State(place="train.py, line 9 (time.sleep(100))"))
    waiting.check_peers(dataclasses.replace(STEP, waited=34.0))
    other.check_verdict()
    assert not ends
    waiting.check_peers(STEP)
    other.check_verdict()
    assert "longer than 35 s for the others in a step (--step-timeout)" in ends[0]
    assert "40 s in all_reduce, in fit(), train.py, line 3, for the other workers: " in ends[0]
    assert "worker 1 is in train.py, line 9 (time.sleep(100))" in ends[0]
    assert ends[1] == f"worker 0 ended the job: {ends[0]}"


@pytest.mark.parametrize("keeper", [None, Task("ps", 0)])
def test_a_store_that_does_not_answer_is_named_and_not_the_other_workers(keeper, caplog):
    cluster = ClusterSpec.from_dict({**SPEC.to_dict(), "ps": ["127.0.0.1:3"]})
    address = "worker 0 (127.0.0.1:1)" if keeper is None else "ps 0 (127.0.0.1:3)"
    ends = []
    waiting = Watchdog(
        Unreached(), cluster, TASKS[1], OperationTracker(), 30.0, ends.append, 50.0, keeper=keeper
    )
    waiting.check_peers(STEP, is_reached=False)
    assert not ends
    waiting.check_peers(dataclasses.replace(STEP, waited=50.0), is_reached=False)
    for message, seconds in ((caplog.messages[-1], 40), (ends[0], 50)):
        assert f"worker 1 has waited {seconds} s in all_reduce, in fit(), train.py" in message
        assert f"{address}, to which all workers report, does not answer." in message
        assert "All workers must call it" not in message
    assert "longer than 50 s for the others in a step (--step-timeout)" in ends[0]


def test_a_worker_that_has_reported_nothing_is_named(store):
    ends = []
    watchdog(store, 0, ends, step_timeout=35.0).check_peers(STEP)
    assert "for the other workers: worker 1 has not reported where it is. All workers" in ends[0]


class Unreached:
    """Entries in a store that does not answer."""

    def put(self, key, value):
        return False

    def get(self, key):
        raise AssertionError("who was not reached is not asked")


class Silence:
    """Entries of which the other worker's stay as they are, on a clock that can be set."""

    def __init__(self, monkeypatch):
        self.now, self.verdicts = 1000.0, []
        monkeypatch.setattr(peers.time, "monotonic", lambda: self.now)

    def put(self, key, value):
        self.verdicts.append((key, value))
        return True

    def get(self, key):
        return State(place="train.py, line 4").to_bytes()


@pytest.mark.parametrize(("state", "ends_it"), [("closed", False), ("unreachable", True)])
def test_who_is_silent_is_given_up_where_its_host_does_not_answer(
    monkeypatch, state, ends_it, caplog
):
    address = SPEC.addresses[TASKS[1]]
    monkeypatch.setattr(
        watchdog_module,
        "connect",
        lambda addresses, timeout: {each: Reached(state, "") for each in addresses},
    )
    ends, silence = [], Silence(monkeypatch)
    watching = Watchdog(silence, SPEC, TASKS[0], OperationTracker(), 30.0, ends.append)
    for waited in range(10, 70, 10):
        silence.now += 10
        watching.check_peers(State("function", "all_reduce", waited))
        assert not ends
    assert f"worker 1 ({address}) has not reported for 50 s" in caplog.messages[-1]
    silence.now += 10
    watching.check_peers(State("function", "all_reduce", 70))
    assert bool(ends) == ends_it
    if ends_it:
        assert f"worker 1 ({address}) has not reported for 60 s, on a host that does not" in ends[0]


def test_without_the_store_the_others_are_silent(monkeypatch):
    silence = Silence(monkeypatch)
    others = peers.Peers(silence, TASKS[1:])
    others.look()
    silence.now += 20
    assert others.look(is_reached=False)[TASKS[1]].describe(30.0) == "has not reported for 20 s"
    silence.now += 100  # nobody looked meanwhile
    assert others.look()[TASKS[1]].silent == 0


def test_silence_without_the_store_begins_when_it_was_last_reached(monkeypatch):
    silence = Silence(monkeypatch)
    others = peers.Peers(silence, TASKS[1:])
    silence.now += 100
    others.note_reached()
    for seconds, silent in ((20, 20), (5, 25)):
        silence.now += seconds
        assert others.look(is_reached=False)[TASKS[1]].silent == silent
    silence.now += 100  # this process may have been suspended
    assert others.look(is_reached=False)[TASKS[1]].silent == 30


def test_who_fails_names_the_host_that_was_cut_off_even_if_it_looks_late(monkeypatch, caplog):
    unreachable = {SPEC.addresses[TASKS[0]]: Reached("unreachable", "")}
    monkeypatch.setattr(watchdog_module, "connect", lambda *_: unreachable)
    monkeypatch.setattr(watchdog_module, "is_ending_by_error", lambda: True)
    silence, ends = Silence(monkeypatch), []
    failing = Watchdog(silence, SPEC, TASKS[1], OperationTracker(), 30.0, ends.append)
    failing._publish(State())
    silence.put = lambda key, value: False
    # The requests that fail have taken all of the time in which its operation waited.
    silence.now += 30
    failing._thread.start()
    failing.leave()
    (message,) = caplog.messages
    assert "worker 1 ends: worker 0 (127.0.0.1:1) has not reported for 30 s, on a host" in message


def test_who_has_ended_is_missed_only_where_it_is_waited_for(store):
    ends = []
    waiting = watchdog(store, 0, ends, needs_all=False)
    watchdog(store, 1, [])._publish(State(ended=True))
    waiting.check_peers(STEP)
    assert not ends
    started = time.monotonic()
    waiting.start()
    waiting.leave()
    assert time.monotonic() - started < 5


APART = """
import sys, time
import numpy as np, tensorflow as tf, keras, strategies

strategy = strategies.from_tf_config(communication=sys.argv[2])
rank = strategy.extended.collectives.rank
x, y = np.ones([32, 3], "float32"), np.ones([32, 1], "float32")
with strategy.scope():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
if sys.argv[1] == "alone":
    time.sleep(5 * rank)                   # longer than a wait that is told of, and allowed
    model.fit(x, y, batch_size=8, verbose=0)
    if rank == 0:
        model.evaluate(x, y, verbose=0)    # the other one ends
elif sys.argv[1] == "rows":
    model.fit(x[:32 - 8 * rank], y[:32 - 8 * rank], batch_size=8, verbose=0)
else:
    total = tf.function(lambda value: strategy.run(lambda: tf.distribute.get_replica_context()
                                                   .all_reduce("SUM", value)))
    for _ in range(3 + rank):              # one step more, and the other one is at a barrier
        total(tf.constant(1.0))
    strategies.barrier(strategy)
"""


@pytest.mark.parametrize(
    ("case", "communication", "messages"),
    [
        (
            "rows",
            "shared_memory",
            ["worker 0: fit(", "examples=32", "worker 1: fit(", "examples=24"],
        ),
        (
            "alone",
            "shared_memory",
            [
                "worker 1 is in script.py, line 12 (time.sleep(5 * rank)",
                "in evaluate(examples=32), script.py, line 15 (model.evaluate",
                "worker 1 has ended. All workers must call it",
            ],
        ),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("rows", "horovod", ["worker 0: fit(", "examples=32", "examples=24"]),
                ("alone", "horovod", ["worker 1 has ended. All workers must call it"]),
                ("rows", "tensorflow", ["worker 0: fit(", "examples=32", "examples=24"]),
                ("alone", "tensorflow", ["worker 1 has ended. All workers must call it"]),
                (
                    "steps",
                    "shared_memory",
                    ["must exchange the same values in the same order.", "sum of ((1, "],
                ),
                ("steps", "horovod", ["line 23 (strategies.barrier(strategy))", "line 22 (total("]),
                ("steps", "tensorflow", ["All workers must call it", "line 22 (total("]),
            ]
        ),
    ],
)
def test_workers_apart_end_the_job_and_are_named(forked, case, communication, messages):
    forked.environ["KERAS_STRATEGIES_WATCH_SECONDS"] = "2"
    script = forked.script(APART)
    code, output = forked.run("--workers", 2, script, case, communication, timeout=240)
    assert code == 1, output
    for message in messages:
        assert message in output, output


SLOW_STEP = """
import sys, time
import numpy as np, tensorflow as tf, keras, strategies

strategy = strategies.from_tf_config(**({"mode": sys.argv[1]} if sys.argv[1:] else {}))
workers = getattr(strategy.extended, "workers", strategy.extended.collectives)
x, y = np.ones([64, 3], "float32"), np.ones([64, 1], "float32")


class Late(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and workers.rank == 1:
            time.sleep(600)


with strategy.scope():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, y, batch_size=4, verbose=0, callbacks=[Late()])
"""


@pytest.mark.parametrize(
    "given",
    [
        ("--workers", 2),
        pytest.param(("--workers", 3), marks=pytest.mark.slow),
        pytest.param(("--workers", 2, "--ps", 1, "sync"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_late_worker_ends_the_job_on_all_of_them(forked, given):
    *cluster, mode = given if "sync" in given else (*given, None)
    script = forked.script(SLOW_STEP)
    started = time.monotonic()
    code, output = forked.run(
        *cluster, "--step-timeout", 8, "--log-dir", "logs", script, *filter(None, [mode]),
        timeout=120,
    )  # fmt: skip
    assert code == 1, output
    assert time.monotonic() - started < 100
    for worker in range(given[1]):
        log = (forked.directory / f"logs/worker-{worker}.log").read_text()
        assert "longer than 8 s for the others in a step (--step-timeout). Received:" in log
        assert "worker 1 is in fit(" in log, log
        assert "line 13 (time.sleep(600))" in log, log
    forked.assert_nothing_left()


def test_the_store_is_at_the_first_workers_address_alone(monkeypatch):
    monkeypatch.setenv("KERAS_STRATEGIES_SECRET", "0123456789abcdef")
    store = _shared_store(LocalCollectives(), SPEC, TASKS[0])
    assert store.put(TASKS[1], b"here")
    at = store._address
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", at.port), 5)
    assert send_request(at, "GET", f"/{_SCOPE}/{TASKS[1].label}")[0] == 403


def test_what_no_worker_wrote_says_nothing(monkeypatch):
    store = _shared_store(LocalCollectives(), SPEC, TASKS[0])
    first = watchdog(store, 0, [])
    for entry in (b"", b"\xff", b"[]", b"3", b'{"more": 1}', b"[" * 10**5):
        assert store.put(TASKS[1], entry)
        assert first._peers.state_of(TASKS[1]) is None
        assert first._peers.look()[TASKS[1]].kind == ""
