"""MirroredStrategy; what is checked stands in tests/scripts."""

import pytest


@pytest.mark.parametrize(
    ("api", "ops"), [("keras", None), ("tf_keras", None), ("keras", "ReductionToOneDevice")]
)
def test_replicas_do_what_one_process_does(train, api, ops):
    train("mirrored.py", api, *([ops] if ops else []), workers=1)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_replicas_reduce_inside_conditions(train, workers):
    train("accumulation.py", 2, workers=workers)
