"""Programs as keras.io's examples are, under every strategy, beside one process.

tests/distributed/keras_io has them. Where batches are the same, so are weights, logs and
predictions.
"""

import pytest

SCRIPT = "run_keras_io.py"
CLUSTERS = [
    ("cluster", 0),
    ("cluster:sync", 1),
    ("cluster:async", 1),
    ("cluster:half_async", 1),
    ("cluster:geo", 1),
]
# Functional with several inputs and outputs, and an own training step.
FEW = ["tickets", "train_step"]


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Arguments that name where the numbers of one process are kept."""
    return ["--references", tmp_path_factory.mktemp("references")]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--distributed"]], ids=["keras", "distributed"])
@pytest.mark.parametrize("setup", ["mirrored", "central"])
def test_two_replicas_follow_one_process(train, references, setup, options):
    # One worker has no TF_CONFIG to meet others by: the strategy is of one process.
    train(SCRIPT, setup, *references, *options, workers=1, timeout=1500)


@pytest.mark.slow
def test_some_examples_follow_one_process_on_two_workers(train):
    train(SCRIPT, "cluster", "--only", *FEW)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--distributed"]], ids=["keras", "distributed"])
@pytest.mark.parametrize(("setup", "ps"), CLUSTERS)
def test_two_workers_follow_one_process(train, references, setup, ps, options):
    train(SCRIPT, setup, *references, *options, ps=ps, timeout=1500)
