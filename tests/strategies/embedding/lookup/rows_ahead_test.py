"""Rows that are exchanged a step ahead; the checks stand in tests/distributed."""

import pytest

from tests.support.check_jobs import checks_of


@pytest.mark.parametrize("communication", ["tensorflow"], indirect=True)
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
@pytest.mark.usefixtures("communication")
def test_rows_ahead_change_no_bit(run_check, check):
    run_check(check, 1, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("communication", "workers", "replicas"),
    [("tensorflow", 3, 2), ("horovod", 2, 1)],
    indirect=["communication"],
)
@pytest.mark.parametrize(
    "check",
    checks_of("rows_ahead.py", only=["rows_that_are_evicted_and_made_again", "a_full_table"]),
)
@pytest.mark.usefixtures("communication")
def test_rows_ahead_of_several_replicas_and_over_horovod(run_check, check, workers, replicas):
    run_check(check, replicas, workers=workers)
