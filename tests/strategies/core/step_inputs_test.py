"""Steps without data count nowhere, and logged losses are those of one process."""

import pytest

from tests.support.check_jobs import checks_of

pytestmark = pytest.mark.training
slow = pytest.mark.slow


@slow
@pytest.mark.parametrize(
    ("api", "kind", "workers", "ps"),
    [
        ("keras", "workers", 2, 0),
        *(
            pytest.param(*case, marks=slow)
            for case in [
                ("keras", "mirrored", 0, 0),
                ("keras", "sync", 2, 1),
                ("keras", "half_async", 1, 1),
                ("tf_keras", "workers", 2, 0),
                ("tf_keras", "central", 0, 0),
                ("tf_keras", "async", 2, 1),
                ("tf_keras", "geo", 1, 1),
            ]
        ),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "steps_and_logs.py",
        slow=[
            "moving_averages_and_accumulated_gradients_have_no_more_steps",
            "steps_of_an_execution_with_leftovers_are_counted",
            "steps_run_eagerly_are_counted",
        ],
    ),
)
def test_steps_and_logs(run_check, check, api, kind, workers, ps):
    run_check(check, api, kind, workers=workers, ps=ps)
