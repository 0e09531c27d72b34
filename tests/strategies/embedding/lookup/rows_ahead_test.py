"""Rows that are exchanged a step ahead; the checks stand in tests/distributed."""

import pytest

from tests.support.check_jobs import checks_of

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("communication", "workers", "replicas"),
    [
        ("tensorflow", 2, 1),
        pytest.param("tensorflow", 3, 2, marks=slow),
        pytest.param("horovod", 2, 1, marks=slow),
    ],
    indirect=["communication"],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "rows_ahead.py",
        slow=[
            "no_bit_differs",
            "rows_in_16_bits",
            "ids_that_have_to_be_admitted",
            "a_full_table",
            "a_penalty_is_refused",
            "several_steps_are_refused",
            "other_ids_are_refused",
            "a_layer_that_was_trained_is_refused",
        ],
    ),
)
def test_rows_ahead_change_no_bit(run_check, communication, check, workers, replicas):
    run_check(check, replicas, workers=workers)
