"""Timelines, speed and the share of communication, drawings; with parameter servers and without.

timelines.py keras|tf_keras [MODE]

All workers see the directory in which it is run, and it is empty.
"""

import gzip
import importlib
import itertools
import json
import os
import sys
import time
from xml.etree import ElementTree

import numpy as np
import tensorflow as tf

import strategies
from strategies.callbacks import StepTimeline, Throughput, on_first_worker
from strategies.collectives.workers import collectives_of
from tests.support.assertions import raises
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
mode = sys.argv[2] if len(sys.argv) > 2 else None
strategy = strategies.from_tf_config(**({"mode": mode} if mode else {}))
rank = collectives_of(strategy).rank
in_step = mode in (None, "sync")
x = np.random.default_rng(0).normal(size=[64, 4]).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
SLEEP = 0.05


class Late(keras.callbacks.Callback):
    """Has the second worker come later to each step."""

    def on_train_batch_begin(self, batch, logs=None):
        if rank == 1:
            time.sleep(SLEEP)


def made():
    with strategy.scope():
        model = keras.Sequential([keras.layers.InputLayer([4]), keras.layers.Dense(1, "sigmoid")])
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return model


def fit(model, *callbacks, **options):
    return model.fit(x, y, batch_size=16, verbose=0, callbacks=list(callbacks), **options).history


def read(name):
    strategies.barrier(strategy)
    with gzip.open(name) as file:
        return json.load(file)


def rows(events, worker):
    """Returns the spans of a worker, by row."""
    own = [event for event in events if event["pid"] == 1 + worker]
    names = {event["tid"]: event["args"]["name"] for event in own if event["name"] == "thread_name"}
    found = {name: [] for name in names.values()}
    for event in own:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return found


def assert_none_overlap(found):
    """A viewer shows slices of a row that overlap as one in the other, or not at all."""
    for spans in found.values():
        spans = sorted(spans, key=lambda span: span["ts"])
        for one, following in itertools.pairwise(spans):
            assert following["ts"] >= one["ts"] + one["dur"] - 0.2, (one, following)


def check_a_timeline_has_the_steps_of_all_workers_and_who_waited():
    model = made()
    fit(model)  # traced without clocks
    fit(model, Late(), StepTimeline("here/steps.json.gz"), epochs=3)
    assert os.listdir("here") == ["steps.json.gz"]
    trace = read("here/steps.json.gz")
    processes = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert [name.split(" (")[0] for name in processes] == ["worker 0", "worker 1"]
    for worker, name in enumerate(processes):
        found = rows(trace["traceEvents"], worker)
        assert_none_overlap(found)
        steps = [event["name"] for event in found["steps"]]
        each = [f"epoch {epoch}, step {step}" for epoch in (1, 2, 3) for step in range(4)]
        assert steps == each, steps
        seconds = trace["otherData"]["seconds"][name]
        parts = sum(value for part, value in seconds.items() if part != "steps")
        assert np.isclose(parts, seconds["steps"], rtol=0.05), seconds
        assert len(found["input"]) >= 12 and seconds["input"] > 0
        assert len(found["communication"]) >= 12 and seconds["communication"] > 0
        assert not any(note.startswith("Input was not") for note in trace["otherData"]["notes"])
        assert ("in the background" in found) == (mode == "async")
    waits = rows(trace["traceEvents"], 0).get("waiting", [])
    if in_step:
        assert {event["name"] for event in waits} == {f"waiting for {processes[1]}"}
        assert trace["otherData"]["seconds"][processes[0]]["waiting"] > 0


def check_the_last_steps_are_kept():
    fit(made(), StepTimeline("last.json.gz", max_steps=3), epochs=2)
    found = rows(read("last.json.gz")["traceEvents"], 1)
    assert [e["name"] for e in found["steps"]] == [f"epoch 2, step {n}" for n in (1, 2, 3)]


def check_no_worker_goes_on_if_the_file_cannot_be_written():
    if rank == 0:
        open("file", "w").close()
    strategies.barrier(strategy)
    kind = OSError if rank == 0 else RuntimeError
    with raises(kind, "Timelines cannot be saved" if rank == 0 else "an error on worker 0"):
        fit(made(), StepTimeline("file/steps.json"))


def check_tensorboard_has_the_speed_and_the_share_of_communication():
    board = on_first_worker(keras.callbacks.TensorBoard("board", histogram_freq=1), strategy)
    model = made()
    speed = Throughput(len(x))
    history = fit(model, speed, board, Late(), epochs=2, validation_data=(x, y))
    shares = history["communication_share"]
    assert all(0 < share < 1 for share in shares), shares
    strategies.barrier(strategy)
    for part in ("train", "validation"):
        (name,) = (name for name in os.listdir(f"board/{part}") if "tfevents" in name)
        events = list(tf.compat.v1.train.summary_iterator(f"board/{part}/{name}"))
        tags = [(value.tag, event.step) for event in events for value in event.summary.value]
        for tag in ("epoch_samples_per_second", "epoch_communication_share", "epoch_loss"):
            steps = [step for each, step in tags if each == tag]
            is_there = part == "train" or tag == "epoch_loss"
            assert steps == ([0, 1] if is_there else []), tags


def check_a_drawing_has_what_each_task_holds():
    with strategy.scope():
        embedding = (
            strategies.DistributedEmbedding(4, combiner="sum", name="ids")
            if keras.__name__ == "keras"
            else keras.layers.Embedding(100, 4, input_length=2)
        )
        model = keras.Sequential([embedding, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.arange(64).reshape([32, 2]), np.zeros([32, 1]), batch_size=8, verbose=0)
    strategies.draw_placement("placement.svg", strategy, model)
    texts = [each.text or "" for each in ElementTree.parse("placement.svg").iter()]
    assert any(each.startswith("2 workers") for each in texts), texts
    kernels = [each for each in texts if "/kernel: " in each]
    assert bool(kernels) == bool(mode), texts
    tables = [each for each in texts if each.startswith("table ids: ")]
    rows = sum(int(each.split()[2]) for each in tables)
    if keras.__name__ == "keras":
        assert (len(tables), rows) == (1 if mode else 2, 64), texts
    with raises(OSError if rank == 0 else RuntimeError, "Drawings" if rank == 0 else "worker 0"):
        strategies.draw_placement("missing/placement.svg", strategy, model)


if __name__ == "__main__":
    run_checks(globals())
