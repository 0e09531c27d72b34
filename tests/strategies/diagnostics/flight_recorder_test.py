"""The files of the last operations, on SIGUSR1 and when the watchdog ends a job."""

import os
import signal

import pytest

from strategies.diagnostics.flight_recorder import FlightRecorder
from strategies.diagnostics.operations import OperationTracker
from tf_config import Task
from tf_config.cli import main
from tf_config.doctor import operation_trace

WAITING = """
import os, time
import keras, numpy as np
import strategies

strategy = strategies.from_tf_config()
with strategy.scope():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones([32, 4]), np.ones([32, 1]), batch_size=8, verbose=0)
rank = strategies.worker_rank(strategy)
with open(f"pid-{rank}.unfinished", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"pid-{rank}.unfinished", f"pid-{rank}")
if rank == 1:
    time.sleep(600)
strategies.barrier(strategy)
"""


def test_a_file_is_written_with_all_that_is_known(tmp_path):
    operations = OperationTracker()
    environ = {"KERAS_STRATEGIES_TRACE_DIR": str(tmp_path / "new")}
    for index in range(2):
        recorder = FlightRecorder(Task("worker", index), operations, lambda: "fit()", environ)
        with operations.track_eager("broadcast"):
            recorder.write("a test")
    first, second = operation_trace.read(tmp_path / "new")
    assert (first.worker, first.reason, first.place) == ("worker 0", "a test", "fit()")
    assert [each.number for each in second.operations] == [1, 2]
    assert [each.end is None for each in second.operations] == [False, True]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "operations-worker-0.json",
        "operations-worker-1.json",
    }


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path, caplog):
    (tmp_path / "file").touch()
    environ = {"KERAS_STRATEGIES_TRACE_DIR": str(tmp_path / "file")}
    FlightRecorder(Task("worker", 0), OperationTracker(), lambda: "", environ).write("a test")
    assert "cannot be written to" in caplog.text


@pytest.mark.slow
def test_a_job_that_waits_shows_for_whom(forked, capsys):
    """One worker waits in a barrier, the other one sleeps; SIGUSR1, and then the watchdog's end."""
    process = forked.start("--workers", 2, "--step-timeout", 40, forked.script(WAITING))
    directory = forked.directory
    pids, files = ([directory / f"pid-{n}" for n in range(2)], directory / "operations")
    names = [files / f"operations-worker-{n}.json" for n in range(2)]
    forked.wait_for(lambda: all(path.exists() for path in pids), 500)

    def has_difference():
        for path in pids:
            os.kill(int(path.read_text()), signal.SIGUSR1)
        forked.wait_for(lambda: all(path.exists() for path in names), 30)
        is_different = main(["doctor", "--trace", str(files)]) == 1
        for path in names:
            path.unlink()
        return is_different

    forked.wait_for(has_difference, 35)
    shown = capsys.readouterr().out.rpartition("the first difference")[2]
    assert "worker 0: all_" in shown and "not ended" in shown
    assert "worker 1: has not begun it; its last one is " in shown
    assert "(strategies.barrier(strategy))" in shown
    assert "(time.sleep(600))" in shown
    code, output = forked.finish(process, 200)
    assert code == 1, output
    assert output.count("tf-config doctor --trace") >= 4
    traces = operation_trace.read(files)
    assert all("(--step-timeout)" in trace.reason for trace in traces)
    assert operation_trace.first_difference(traces) is not None
