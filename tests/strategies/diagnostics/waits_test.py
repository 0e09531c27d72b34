"""For whom workers wait, and the line about the one that causes most waits."""

import contextlib
import os
import signal
import threading

import numpy as np
import pytest

from strategies.diagnostics.waits import (
    COLUMNS,
    WaitReport,
    read_exchanges,
    samples_of,
    waited_seconds,
)
from tests.support.metrics_page import fetch, key
from tf_config import Task
from tf_config.builder import free_ports
from tf_config.launcher.progress_file import Sample

TASKS = [Task("worker", index) for index in range(3)]


def exchanges(begins, end=None, first=1, stream=2):
    """Returns a worker's exchanges, one a second."""
    count = len(begins)
    table = np.zeros([count, COLUMNS])
    table[:, 0], table[:, 1] = stream, np.arange(first, first + count)
    table[:, 2] = np.arange(count) + begins
    table[:, 3] = np.arange(count) + (0.9 if end is None else end)
    return table


def test_an_exchange_waits_for_the_worker_that_begins_it_last():
    waits = waited_seconds(np.array([[0.0], [0.2], [0.5]]), np.array([[0.6], [0.6], [0.6]]))
    np.testing.assert_allclose(waits, [[0, 0, 0.5], [0, 0, 0.3], [0, 0, 0]])


def test_clocks_that_differ_are_no_waits():
    rng = np.random.default_rng(0)
    begins, ends = rng.uniform(0, 0.5, [2, 50]), np.full([2, 50], 0.6)
    shift = np.array([[0.0], [100.0]])
    expected = waited_seconds(begins, ends)
    assert expected.sum() > 0
    np.testing.assert_allclose(waited_seconds(begins + shift, ends + shift), expected)


def test_each_exchange_counts_once_however_often_it_is_published():
    report = WaitReport(TASKS[:2])
    early, late = exchanges([0.1] * 20), exchanges([0.3] * 20)
    report.add([early[:10], late[:8]])
    report.add([early[:15], late[5:]])
    report.add([early, late[5:]])
    assert "each other worker waited 4.0 s of 19.8 s for it" in report.end_epoch()


def test_exchanges_of_different_streams_are_not_mixed():
    report = WaitReport(TASKS[:2])
    report.add([exchanges([0.1] * 9, stream=2), exchanges([0.3] * 9, stream=3)])
    assert report.end_epoch() == ""


def test_the_worker_that_the_others_wait_for_is_named():
    report = WaitReport(TASKS)
    report.add([exchanges([0.1] * 10), exchanges([0.4] * 10), exchanges([0.1] * 10)])
    assert report.end_epoch() == (
        "worker 1 caused 100% of the waits in exchanges: each other worker waited 3.0 s of 9.8 s "
        "for it, on average."
    )
    assert report.end_epoch() == ""  # of the next epoch nothing is known


@pytest.mark.parametrize(
    "begins",
    [
        [[0.1, 0.4] * 5, [0.4, 0.1] * 5],  # in turn
        [[0.1] * 10, [0.14] * 10],  # for a twenty-fifth of the time
    ],
)
def test_otherwise_no_worker_is_named(begins):
    report = WaitReport(TASKS[:2])
    report.add([exchanges(each) for each in begins])
    assert report.end_epoch() == ""


def test_each_worker_reads_its_own_waits():
    report = WaitReport(TASKS)
    report.add([exchanges([0.1] * 10), exchanges([0.4] * 10), exchanges([0.3] * 10)])
    entry = report.to_json()
    assert samples_of(TASKS[2], entry) == [Sample("waited_seconds_total", 1.0, ("worker 1",))]
    assert samples_of(TASKS[1], entry) == samples_of(TASKS[1], None) == []


def test_other_entries_are_no_exchanges():
    for entry in (None, b"", b"x", b"12345678"):
        assert read_exchanges(entry) is None


TRAINING = """
import os, time
import keras, numpy as np
import strategies

class Epochs(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        with open(f"pid-{rank}.unfinished", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"pid-{rank}.unfinished", f"pid-{rank}")

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.005)  # an epoch takes some seconds on any machine

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch + 1} has ended", flush=True)

strategy = strategies.from_tf_config()
rank = strategies.worker_rank(strategy)
with strategy.scope():
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones([12800, 64], "float32")
model.fit(x, x[:, :1], batch_size=16, epochs=3, verbose=0, callbacks=[Epochs()])
"""


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0, 1])
def test_a_worker_that_is_stopped_for_50_of_every_200_ms_is_named_and_no_other(forked, slow):
    pytest.importorskip("prometheus_client")
    (port,) = free_ports(1, "")
    process = forked.start("--workers", 2, "--metrics-port", port, forked.script(TRAINING))
    paths = [forked.directory / f"pid-{n}" for n in range(2)]
    forked.wait_for(lambda: all(path.exists() for path in paths), 500)
    pid, ended, page = int(paths[slow].read_text()), threading.Event(), {}

    def stop_and_go():
        with contextlib.suppress(ProcessLookupError):
            while not ended.wait(0.15):
                os.kill(pid, signal.SIGSTOP)
                ended.wait(0.05)
                os.kill(pid, signal.SIGCONT)

    def read_page():
        while not ended.wait(1.0):
            with contextlib.suppress(OSError):
                page.update(fetch(port)[0])

    threads = [threading.Thread(target=each) for each in (stop_and_go, read_page)]
    for thread in threads:
        thread.start()
    code, output = forked.finish(process, 900)
    ended.set()
    for thread in threads:
        thread.join()
    assert code == 0, output
    assert f"worker {slow} caused " in output[: output.index("epoch 3 has ended")], output
    assert f"worker {1 - slow} caused " not in output, output
    tasks = [Task("worker", index) for index in range(2)]
    names = [str(task) for task in tasks]
    waited = [
        page.get(key("waited_seconds_total", tasks[1 - late], late=names[late]), 0.0)
        for late in (slow, 1 - slow)
    ]
    assert waited[0] > 2 * waited[1], output
