"""tools/gpu_check.py: what it makes of outcomes, and a part of it here, on CPUs."""

import json
import subprocess
import sys
from pathlib import Path

import gpu_check
import pytest
from compatibility_columns import cached_column
from gpu_check import Check

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def trained(monkeypatch):
    """Sets what a training on GPUs, and then one on CPUs, find."""

    def set_to(gpus, cpus=()):
        found = {True: gpus, False: cpus}
        monkeypatch.setattr(
            gpu_check, "train", lambda words, under, on_gpus: (found[on_gpus], "it\nended so\n")
        )

    return set_to


def worker(near, device="GPU:0"):
    replica = f"/job:localhost/replica:0/task:0/device:{device}"
    return {"near": near, "replicas": [replica], "predicted": str(near)}


@pytest.mark.parametrize(
    ("gpus", "cpus", "words", "verdict", "note"),
    [
        ([worker(1.0)], [worker(1.0)], ("dense",), "yes", "on GPU:0; difference 0.0e+00"),
        ([worker(1.0)], [worker(1.01)], ("dense",), "no", "difference 9.9e-03"),
        ([worker(1.0)], [worker(1.01)], ("dense", "mixed"), "yes", "difference 9.9e-03"),
        ([worker(1.0, "CPU:0")], [worker(1.0)], ("dense",), "no", "ran on CPU:0"),
        ([worker(float("nan"))], [worker(1.0)], ("dense",), "no", "not finite"),
        ([], [worker(1.0)], ("dense",), "no", "ended so"),
        ([worker(1.0)], [], ("dense",), "no", "what it is compared with: ended so"),
    ],
)
def test_numbers_on_gpus_are_compared_with_those_on_cpus(trained, gpus, cpus, words, verdict, note):
    trained(gpus, cpus)
    outcome = gpu_check.run(Check("a check", words), gpus=1)
    assert outcome.verdict == verdict and note in outcome.note


def test_what_needs_more_gpus_is_left_out(trained):
    trained([worker(1.0, "CPU:0")])
    assert gpu_check.run(Check("nccl", ("dense",), gpus=2), gpus=1).verdict == "left out"
    assert gpu_check.run(Check("halves", ("dense", "logical")), gpus=0).verdict == "left out"
    alone = gpu_check.run(Check("here", ("dense",)), gpus=0)
    assert alone.verdict == "yes" and alone.note == "on CPU:0; not compared"


def test_what_is_deterministic_gives_the_same_bits_twice(monkeypatch):
    check = Check("twice", ("dense",), has_twin=True)
    for seconds, verdict in ([1.0, "yes"], [1.0000001, "no"]):
        runs = iter([[worker(1.0)], [worker(seconds)]])
        monkeypatch.setattr(gpu_check, "train", lambda *_, on_gpus, runs=runs: (next(runs), ""))
        assert gpu_check.run(check, gpus=1).verdict == verdict


def test_each_row_has_a_title_of_its_own(tmp_path):
    for gpus in (0, 1, 2):
        checks = gpu_check.checks(gpus)
        rows = gpu_check.rows(gpus, is_whole=False, cache=tmp_path)
        # Kernels, the speed, and two columns of each of the two tables.
        assert len(rows) == len(checks) + 6 > 16
        # Of models six columns in two Keras, of rows nine, in place of two of each in one.
        whole = gpu_check.rows(gpus, is_whole=True, cache=tmp_path)
        assert len(whole) == len(rows) + (12 - 2) + (18 - 2)


@pytest.mark.parametrize(
    ("code", "verdict", "note"),
    [(0, "yes", "1 of 2 cells work"), (1, "no", "1 of 2 cells work, and others do not that")],
)
def test_a_column_says_how_many_cells_work(monkeypatch, tmp_path, code, verdict, note):
    def execute(command, limit, **environ):
        measured = {"Dense": {"state": "ok"}, "`jit_compile=True`": {"state": "fails"}}
        cached_column(tmp_path, "rows", "keras", "mirrored").write_text(json.dumps(measured))
        return subprocess.CompletedProcess(command, code, "the table")

    monkeypatch.setattr(gpu_check, "execute", execute)
    outcome = gpu_check.cells("a column", "rows", "mirrored", "keras", 1, tmp_path)
    assert outcome.verdict == verdict and outcome.note.startswith(note)


def test_a_column_that_does_not_start_says_why(monkeypatch, tmp_path):
    ended = subprocess.CompletedProcess([], 1, "Traceback\nRuntimeError: no GPU\n")
    monkeypatch.setattr(gpu_check, "execute", lambda *_, **__: ended)
    outcome = gpu_check.cells("a column", "rows", "mirrored", "keras", 1, tmp_path)
    assert outcome.verdict == "no" and outcome.note == "RuntimeError: no GPU"


@pytest.mark.parametrize("code", [0, 1])
def test_kernels_are_named_that_were_found(monkeypatch, code):
    text = "check_one_thing passed\nAssertionError: {'StringJoin[]': 1}\n"
    ended = subprocess.CompletedProcess([], code, text)
    monkeypatch.setattr(gpu_check, "execute", lambda *_, **__: ended)
    outcome = gpu_check.kernels()
    assert outcome.verdict == ("no" if code else "yes") and "one thing" in outcome.note
    assert ("StringJoin" in outcome.note) == bool(code)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "only", ["mixed", "servers, sync", "logical", "kernels", "compatibility of rows: mirrored"]
)
def test_a_part_runs_here(job, tmp_path, only):
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), "--only", only]
    done = subprocess.run(
        command, env=job.environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    (outcome,) = report["outcomes"]
    assert outcome["verdict"] == ("left out" if only == "logical" else "yes"), report
    assert report["machine"]["gpus"] == [] and report["machine"]["cuda"]
    assert "TensorFlow sees no GPU" in done.stdout
