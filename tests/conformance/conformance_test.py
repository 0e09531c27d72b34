"""Other people's tests of distribution strategies, over stock TensorFlow's strategies and ours.

What stock TensorFlow fails too is listed with the reason; everything else passes. Other suites in
the wheels do not fit: tf_keras's bases (keras_correctness_test_base and its like) choose strategies
by TensorFlow's own named combinations, and multi_process_runner starts workers without a launcher.
"""

import subprocess
import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).resolve().parent / "scripts" / "suites.py"
_GRAPH = "TensorFlow 2 iterates over a distributed dataset eagerly and in tf.function alone"
_OWN_DEVICES = "the base takes the devices of one worker for those of all replicas"
_FIRST_ALONE = "the base looks for replica 0's summary, which the second worker does not write"
# By suite and test: why stock TensorFlow fails.
FAILS_IN_STOCK = {
    ("mirrored", "input_fn_iterable_graph"): _GRAPH,
    ("central_storage", "input_fn_iterable_graph"): _GRAPH,
    ("one_device", "input_fn_iterable_graph"): _GRAPH,
    ("multi_worker", "replica_id"): _OWN_DEVICES,
    ("multi_worker", "summary_for_replica_zero_only"): _FIRST_ALONE,
}
# How many tests there are at least: a base that is imported wrongly has none.
COUNTS = {"mirrored": 38, "central_storage": 38, "one_device": 26, "multi_worker": 6, "keras": 15}

pytestmark = pytest.mark.slow


def outcomes(output):
    """Returns the names of the tests that passed, and of those that failed, in any worker."""
    lines = [
        line.removeprefix("[worker 0] ").removeprefix("[worker 1] ").split() for line in output
    ]
    passed, failed = (
        {words[1] for words in lines if words[:1] == [outcome] and len(words) > 1}
        for outcome in ("passed", "failed")
    )
    return passed - failed, failed


@pytest.mark.parametrize("whose", ["stock", "ours"])
@pytest.mark.parametrize("name", ["mirrored", "central_storage", "one_device", "keras"])
def test_in_one_process(job, name, whose):
    command = [sys.executable, "-u", str(SUITES), name, whose]
    done = subprocess.run(
        command, env=job.environ, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.stdout.rstrip().endswith("done"), done.stdout + done.stderr
    check(name, done.stdout.splitlines(), whose)


@pytest.mark.parametrize("whose", ["stock", "ours"])
def test_in_two_workers(job, whose):
    code, output = job.run("--workers", 2, SUITES, "multi_worker", whose, timeout=1800)
    assert code == 0, output
    for worker in range(2):
        assert f"[worker {worker}] done" in output, output
    check("multi_worker", output.splitlines(), whose)


def check(name, output, whose):
    passed, failed = outcomes(output)
    known = {test for suite, test in FAILS_IN_STOCK if suite == name}
    assert len(passed) >= COUNTS[name], sorted(passed)
    if whose == "stock":
        assert failed == known, output
    else:
        assert failed <= known, output
