"""DistributedEmbedding gives the same numbers under every strategy, whatever it is made of."""

import json

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

RUNS = [
    ("none", 1, 0),
    ("mirrored", 1, 0),
    ("central_storage", 1, 0),
    ("cluster", 1, 0),
    ("cluster", 2, 0),
    ("cluster", 4, 0),
    ("cluster", 1, 1),
    ("cluster", 2, 3),
]

# What is drawn may leave out a combiner; this leaves out none.
EVERY_COMBINER = {
    "seed": 7,
    "ids": 20,
    "widths": [3, 2],
    "features": [
        {"table": 0, "combiner": None, "hotness": 2, "ragged": False, "weighted": False},
        {"table": 0, "combiner": "mean", "hotness": 3, "ragged": True, "weighted": True},
        {"table": 1, "combiner": "sqrtn", "hotness": 3, "ragged": False, "weighted": True},
        {"table": 1, "combiner": "sum", "hotness": 2, "ragged": True, "weighted": False},
    ],
    "optimizer": "Adagrad",
    "batch": 8,
}


@st.composite
def features(draw, tables):
    combiner = draw(st.sampled_from([None, "sum", "mean", "sqrtn"]))
    return {
        "table": draw(st.integers(0, tables - 1)),
        "combiner": combiner,
        "hotness": draw(st.integers(1, 4)),
        "ragged": combiner is not None and draw(st.booleans()),
        "weighted": combiner is not None and draw(st.booleans()),
    }


@st.composite
def cases(draw):
    widths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    return {
        "seed": draw(st.integers(0, 2**16)),
        "ids": draw(st.integers(1, 30)),
        "widths": widths,
        "features": draw(st.lists(features(len(widths)), min_size=2, max_size=4)),
        "optimizer": draw(st.sampled_from(["SGD", "Adagrad", "Adam"])),
        # Of all workers' replicas as many rows each: the loss is a mean of each of theirs.
        "batch": 4 * draw(st.integers(1, 6)),
    }


@pytest.mark.slow
@settings(
    max_examples=1,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(case=cases())
@example(case=EVERY_COMBINER)
def test_every_strategy_does_the_same(train, tmp_path, case):
    file = tmp_path / "expected.npz"
    for kind, workers, ps in RUNS:
        arguments = file, json.dumps(case), kind
        train("embedding_alike.py", *arguments, workers=workers, ps=ps, timeout=300)
