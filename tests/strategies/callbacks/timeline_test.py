"""Timelines of workers that are only numbers, and of real ones: tests/distributed/timelines.py."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.callbacks import StepTimeline
from strategies.profiling import spans, trace
from strategies.profiling.spans import EXCHANGE, INPUT, Recorded, Span, SpanStream
from tests.support.check_jobs import checks_of

pytestmark = pytest.mark.training


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    checks_of(
        "timelines.py",
        slow=[
            "tensorboard_has_the_speed_and_the_share_of_communication",
            "a_drawing_has_what_each_task_holds",
            "the_last_steps_are_kept",
            "no_worker_goes_on_if_the_file_cannot_be_written",
        ],
    ),
)
@pytest.mark.parametrize(
    ("arguments", "ps"),
    [
        ((keras.__name__,), 0),
        pytest.param(("tf_keras",), 0, marks=pytest.mark.slow),
        pytest.param(("keras", "sync"), 1, marks=pytest.mark.slow),
        pytest.param(("tf_keras", "half_async"), 1, marks=pytest.mark.slow),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else f"{value}ps",
)
def test_on_real_workers(run_check, check, arguments, ps):
    run_check(check, *arguments, ps=ps)


@pytest.mark.slow
@pytest.mark.parametrize("communication", ["horovod", "tensorflow"], indirect=True)
@pytest.mark.parametrize("check", checks_of("timelines.py"))
def test_every_way_of_communication_is_measured(run_check, check, communication):
    run_check(check, "keras")


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setattr(spans, "_is_on", True)
    monkeypatch.setattr(spans, "_streams", [])


def test_functions_record_what_they_wait_for_each_time_they_run(recording):
    stream = SpanStream(INPUT)

    @tf.function
    def function(value):
        for _ in tf.range(2):
            value += stream.measure("once", lambda: tf.constant([1.0, 2.0]))
        return value

    for _ in range(3):
        assert function(tf.zeros([2])).numpy().tolist() == [2, 4]
    found, complete = stream.since(0.0)
    assert [span.name for span in found] == ["once"] * 6
    assert complete == 0.0
    assert all(span.begin <= span.end for span in found)
    assert stream.since(found[-1].end)[0] == []


@pytest.mark.parametrize("in_graph", [False, True])
def test_the_newest_are_kept_and_it_is_known_since_when(recording, monkeypatch, in_graph):
    monkeypatch.setattr(spans, "_KEPT", 4)
    stream = SpanStream(INPUT)

    def measured():
        return stream.measure("it", lambda: tf.constant(1))

    function = tf.function(measured) if in_graph else measured
    for _ in range(4):
        function()
    assert stream.since(0.0)[1] == 0.0
    for _ in range(3):
        function()
    found, complete = stream.since(0.0)
    assert len(found) == 4
    assert complete == found[0].end


def test_nothing_is_recorded_unless_asked_for(monkeypatch):
    monkeypatch.setattr(spans, "_is_on", False)
    stream = SpanStream(INPUT)
    assert tf.function(lambda: stream.measure("it", lambda: tf.constant(1)))().numpy() == 1
    stream.measure_call("it", lambda: None)
    assert stream.since(0.0) == ([], 0.0)


def worker(rank, *begins, name="sum"):
    exchanges = [Span(name, begin, 10.0 + begin) for begin in begins]
    return trace.WorkerSteps(rank, str(rank), [], [Recorded(EXCHANGE, True, exchanges)])


def test_where_workers_recorded_different_exchanges_nobody_is_said_to_have_waited():
    assert trace.waits_of([worker(0, 1.0, 2.0), worker(1, 3.0)]) == {0: [], 1: []}
    assert trace.waits_of([worker(0, 1.0), worker(1, 3.0, name="other")]) == {0: [], 1: []}
    assert trace.waits_of([worker(0, 1.0), worker(1, 3.0)])[0] != []


def test_a_wait_ends_with_its_exchange_however_apart_the_clocks_are():
    first = worker(0, 1.0)
    assert trace.waits_of([first, worker(1, 500.0)])[0] == [Span("waiting for 1", 1.0, 11.0)]


@pytest.mark.parametrize("executed_together", [1, 2])
def test_one_worker_exchanges_nothing(tmp_path, executed_together):
    strategy = strategies.MirroredStrategy(num_replicas=1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.InputLayer([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=executed_together)
    x = np.ones([8, 2], "float32")
    speed = strategies.callbacks.Throughput(8)
    timeline = StepTimeline(tmp_path / "steps.json")
    history = model.fit(x, x[:, :1], batch_size=2, verbose=0, callbacks=[speed, timeline]).history
    assert history["communication_share"] == [0.0]
    written = json.loads((tmp_path / "steps.json").read_text())
    names = [event["name"] for event in written["traceEvents"] if event["ph"] == "X"]
    each = ["steps 0-1", "steps 2-3"] if executed_together == 2 else [f"step {n}" for n in range(4)]
    assert [name for name in names if name.startswith("epoch")] == [f"epoch 1, {e}" for e in each]
    assert names.count("next batch") >= 4
    (seconds,) = written["otherData"]["seconds"].values()
    assert seconds["communication"] == seconds["waiting"] == 0.0


def test_input_that_is_not_observed_is_said(tmp_path):
    model = keras.Sequential([keras.layers.InputLayer([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")  # under no strategy of this package
    x = np.ones([8, 2], "float32")
    model.fit(x, x[:, :1], verbose=0, callbacks=[StepTimeline(tmp_path / "steps.json")])
    notes = json.loads((tmp_path / "steps.json").read_text())["otherData"]["notes"]
    assert any(note.startswith("Input was not observed on worker 0") for note in notes)


def test_the_number_of_steps_is_checked():
    with pytest.raises(ValueError, match="max_steps must be an integer >= 1. Received: 0"):
        StepTimeline("steps.json", max_steps=0)


def test_a_path_elsewhere_is_refused():
    with pytest.raises(ValueError, match="a local file. Received: 'gs://bucket/steps'"):
        StepTimeline("gs://bucket/steps")
