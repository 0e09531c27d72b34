"""Steps without data count nowhere, and logged losses are those of one process."""

import pytest

from tests.support.check_jobs import checks_of

pytestmark = pytest.mark.training
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("api", "kind", "workers", "ps"),
    [
        pytest.param("keras", "mirrored", 0, 0, marks=slow),
        ("keras", "workers", 2, 0),
        pytest.param("tf_keras", "mirrored", 0, 0, marks=slow),
        pytest.param("tf_keras", "workers", 2, 0, marks=slow),
        *(
            pytest.param(api, kind, workers, ps, marks=slow)
            for api in ("keras", "tf_keras")
            for kind, workers, ps in [
                ("central", 0, 0),
                ("sync", 2, 1),
                ("async", 2, 1),
                ("half_async", 1, 1),
                ("geo", 1, 1),
            ]
        ),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "steps_and_logs.py",
        slow=[
            "so_are_several_in_one_execution_with_leftovers",
            "steps_run_eagerly_are_counted",
        ],
    ),
)
def test_steps_and_logs(run_check, check, api, kind, workers, ps):
    run_check(check, api, kind, workers=workers, ps=ps, timeout=500)
