"""The numbers that a process reports, and those that a page shows of a job that trains."""

import gc
import shutil

import pytest

from strategies.diagnostics.metrics import Reporter, add_source, samples_of_all
from tests.support.metrics_page import fetch, key
from tf_config import Task
from tf_config.builder import free_ports
from tf_config.launcher.progress_file import Sample


class Counts:
    def __init__(self, *samples):
        self.values = samples

    def samples(self):
        return self.values


@pytest.fixture
def reported(monkeypatch):
    monkeypatch.setenv("KERAS_STRATEGIES_METRICS", "1")


def test_there_are_no_sources_unless_a_page_shows_them(monkeypatch):
    monkeypatch.delenv("KERAS_STRATEGIES_METRICS", raising=False)
    counts = Counts(Sample("steps_total", 3))
    add_source(counts, Counts.samples)
    assert ("steps_total", 3) not in {(name, value) for name, value, _ in samples_of_all()}


def test_numbers_of_a_name_are_added_until_their_owner_is_deleted(reported):
    first = Counts(Sample("queue_depth", 1, ("a",)), Sample("queue_depth", 5, ("b",)))
    second = Counts(Sample("queue_depth", 2, ("a",)))
    for each in (first, second):
        add_source(each, Counts.samples)
    assert {*samples_of_all()} >= {*first.values[1:], Sample("queue_depth", 3, ("a",))}
    del each, second
    gc.collect()
    assert Sample("queue_depth", 1, ("a",)) in samples_of_all()


def test_the_speed_is_that_of_the_last_ten_seconds(reported):
    now, counts = [0.0], Counts()
    add_source(counts, Counts.samples)
    reporter = Reporter(lambda: now[0])

    def speed(time, steps):
        now[0] = time
        counts.values = Sample("steps_total", steps), Sample("samples_total", 8 * steps)
        found = {sample.name: sample.value for sample in reporter.report().samples}
        return found.get("samples_per_second"), found.get("step_seconds")

    assert speed(0, 0) == (None, None)
    assert speed(4, 2) == (4.0, 2.0)
    assert speed(10, 8) == (6.4, 1.25)
    assert speed(14, 10) == (6.4, 1.25)  # since 4
    assert speed(30, 10) == (0.0, None)  # since 14


TRAINING = """
import os, time
import keras, numpy as np, tensorflow as tf
import strategies

strategy = strategies.from_tf_config()
with strategy.scope():
    ids = keras.Input([1], dtype="int64")
    table = strategies.DistributedEmbedding(output_dim=4, name="users")
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(table(ids))))
    model.compile("sgd", "mse")
x, y = np.arange(48).reshape([48, 1]) % 11, np.ones([48, 1])
saves = strategies.callbacks.Checkpoint("checkpoints", every_steps=4)
model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0, callbacks=[saves])
model.predict(x, verbose=0)
open(f"done-{strategies.worker_rank(strategy)}", "w").close()
while not os.path.exists("read"):
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_the_page_of_a_job_that_trains(forked):
    """6 steps in each of 2 epochs, of 4 examples on each worker, and 11 ids."""
    pytest.importorskip("prometheus_client")
    (port,) = free_ports(1, "")
    process = forked.start("--workers", 2, "--metrics-port", port, forked.script(TRAINING))
    tasks = [Task("worker", index) for index in range(2)]
    page = {}

    def is_complete():
        if process.poll() is not None:
            return True
        if all((forked.directory / f"done-{index}").exists() for index in range(2)):
            page.update(fetch(port)[0])
        return all(page.get(key("steps_total", task)) == 12 for task in tasks)

    forked.wait_for(is_complete, 500)
    (forked.directory / "read").touch()
    code, output = forked.finish(process, 60)
    assert code == 0, output
    for task in tasks:
        assert page[key("samples_total", task)] == 48, page
        assert page[key("samples_per_second", task)] >= 0
        assert page[key("checkpoint_duration_seconds", task, directory="checkpoints")] > 0
        assert page[key("checkpoint_age_seconds", task, directory="checkpoints")] > 0
        assert page[key("embedding_evicted_total", task, table="users")] == 0
    for name in ("embedding_rows", "embedding_admitted_total"):
        assert sum(page[key(name, task, table="users")] for task in tasks) == 11
    shutil.rmtree(forked.directory / "checkpoints")
