"""Workers join and leave a job, and each example of an epoch is trained on once."""

import collections
import json
import os
import re
import signal

import pytest

from tests.support.elastic_training import BATCH, EXAMPLES, ElasticTraining
from tests.support.job import HANGING_SECONDS

SLOW = pytest.mark.slow
EPOCHS, STEPS = 7, EXAMPLES // BATCH


# They stop there, until another worker has joined.
IN_EPOCH_1 = ("stop-0-1-2", "stop-1-1-3")


def join_in_epoch_1(training):
    """Has a worker join while the others are in the middle of epoch 1."""
    for rank, step in ((0, 2), (1, 3)):
        training.wait_for(rank, 1, step)
    joined = training.join()
    training.wait_for(2, 1, 0)
    training.touch("go-1-2", "go-1-3")
    return joined


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("half_async", ["checkpoints"]),
        pytest.param("half_async", ["arrays"], marks=SLOW),
        pytest.param("half_async", ["loop"], marks=SLOW),
        pytest.param("async", [], marks=SLOW),
        pytest.param("async", ["arrays", "checkpoints"], marks=SLOW),
        pytest.param("half_async", ["rows", "checkpoints"], marks=SLOW),
        pytest.param("async", ["rows", "loop"], marks=SLOW),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "dataset",
)
def test_a_worker_joins_and_leaves(forked, mode, options):
    servers = 2 if "rows" in options else 1
    training = ElasticTraining(forked, mode, EPOCHS, *options, stops=IN_EPOCH_1, servers=servers)
    # It leaves in epoch 4, while the others wait in the middle of it.
    training.touch("stop-2-4-3", "stop-0-4-2", "stop-1-4-4")
    joined = join_in_epoch_1(training)
    for rank, step in ((0, 2), (1, 4), (2, 3)):
        training.wait_for(rank, 4, step)
    os.kill(int((forked.directory / "pid-2").read_text()), signal.SIGTERM)
    code, text = forked.finish(joined, HANGING_SECONDS)
    assert code == 0, text
    training.touch("go-4-2", "go-4-4")
    counts, output = training.finish()
    assert "worker 2, which had joined the job, has left" in output
    for rank in (0, 1):
        assert training.steps(rank) == [
            (epoch, step, 3 if 2 <= epoch <= 4 else 2)
            for epoch in range(EPOCHS)
            for step in range(STEPS)
        ]
    epochs, workers = training.workers_by_epoch(2)
    # In a loop, it runs through the earlier epoch as well, without examples.
    assert epochs == ([0] if "loop" in options else []) + [1, 2, 3, 4]
    assert workers[-4:] == [{2}, {3}, {3}, {3}]
    # Only the examples that it says: a third of those in each of the last steps.
    assert re.search(rf"Worker 2 leaves in epoch 4, after 3 of {STEPS} steps\. Its", text), text
    assert "from epoch 5 on" in text
    lost = (STEPS - 3) * BATCH // 3
    assert training.lost(text) == lost
    assert collections.Counter(counts) == {EPOCHS: EXAMPLES - lost, EPOCHS - 1: lost}
    forked.assert_nothing_left()


@SLOW
def test_another_worker_takes_the_place_within_the_epoch(forked):
    """It has the number of the one that has left, but not the part of its examples."""
    training = ElasticTraining(forked, "half_async", EPOCHS, stops=IN_EPOCH_1)
    training.touch("stop-2-3-2", "stop-0-3-2", "stop-1-3-4")
    first = join_in_epoch_1(training)
    for rank, step in ((0, 2), (1, 4), (2, 2)):
        training.wait_for(rank, 3, step)
    first.send_signal(signal.SIGTERM)
    code, text = forked.finish(first, HANGING_SECONDS)
    assert code == 0, text
    (forked.directory / "stop-2-3-2").unlink()
    made = len(training.steps(2))
    second = training.join()
    training.job.wait_for(lambda: len(training.steps(2)) > made, HANGING_SECONDS)
    training.touch("go-3-2", "go-3-4")
    counts, _ = training.finish()
    assert forked.finish(second, HANGING_SECONDS)[0] == 0
    assert training.workers_by_epoch(0)[1] == [{2}, {2}, *[{3}] * (EPOCHS - 2)]
    lost = training.lost(text)
    assert lost == (STEPS - 2) * BATCH // 3
    assert collections.Counter(counts) == {EPOCHS: EXAMPLES - lost, EPOCHS - 1: lost}


@SLOW
@pytest.mark.parametrize("mode", ["geo", "half_async"])
def test_a_worker_joins_and_stays(forked, mode):
    training = ElasticTraining(forked, mode, EPOCHS, stops=IN_EPOCH_1)
    joined = join_in_epoch_1(training)
    counts, _ = training.finish()
    code, text = forked.finish(joined, HANGING_SECONDS)
    assert code == 0 and "finished" in text, text
    assert training.workers_by_epoch(0)[1] == [{2}, {2}, *[{3}] * (EPOCHS - 2)]
    assert set(counts) == {EPOCHS}
    if mode == "geo":  # a step with one exchange leaves 1 - 1/N of its progress unsent
        weight = json.loads((forked.directory / "weight.json").read_text())
        assert min(weight) > 0 and max(weight) < EPOCHS
    forked.assert_nothing_left()


@pytest.mark.parametrize(
    ("strategy", "received"),
    [
        ("ParameterServerStrategy(mode='sync')", "mode='sync'"),
        ("MultiWorkerMirroredStrategy()", "MultiWorkerMirroredStrategy"),
    ],
)
def test_strategies_whose_workers_take_each_step_together_are_refused(forked, strategy, received):
    script = forked.script(f"import strategies\nstrategies.{strategy}\n")
    code, output = forked.run("--workers", "2:3", "--ps", 1, script)
    assert code == 1, output
    assert "--workers 2:3 requires ParameterServerStrategy with mode='async'" in output
    assert f"Received: {received}. " in output
    assert "use --workers 3 --min-workers 2 --max-restarts 3 instead" in output


@SLOW
def test_a_job_that_restarts_all_tasks_is_joined_again(forked):
    """The workers have exchanged values, so that the one that is killed is not restarted alone."""
    training = ElasticTraining(
        forked, "half_async", EPOCHS, "checkpoints", stops=IN_EPOCH_1, restarts=1
    )
    # In epoch 5, after the restart, for the worker that joins again.
    training.touch("stop-1-4-3", "stop-0-5-2")
    joined = join_in_epoch_1(training)
    training.wait_for(1, 4, 3)
    (forked.directory / "stop-1-4-3").unlink()
    os.kill(int((forked.directory / "pid-1").read_text()), signal.SIGKILL)
    training.wait_for(2, 5, 0)
    training.touch("go-5-2")
    counts, output = training.finish()
    assert "restart 1 of 1\n" in output
    code, text = forked.finish(joined, HANGING_SECONDS)
    assert code == 0 and "the job restarts all tasks" in text, text
    # Epoch 4 was begun again, from the checkpoint.
    assert set(counts) == {EPOCHS}
    forked.assert_nothing_left()
