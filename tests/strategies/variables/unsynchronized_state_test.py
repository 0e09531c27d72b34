"""What layers keep, and scalars as numbers; the checks stand in tests/distributed/states.py."""

import pytest

from tests.support.check_jobs import checks_of

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("api", "setup", "workers", "ps"),
    [
        ("keras", "mirrored", 1, 0),
        pytest.param("tf_keras", "central_storage", 1, 0, marks=slow),
        pytest.param("keras", "cluster", 2, 0, marks=slow),
        pytest.param("tf_keras", "cluster", 2, 0, marks=slow),
        pytest.param("tf_keras", "sync", 2, 1, marks=slow),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of("states.py", slow=["a_layer_can_keep_a_value_for_the_examples_of_each_replica"]),
)
def test_replicas_do_what_one_process_does(run_check, check, api, setup, workers, ps):
    run_check(check, api, setup, workers=workers, ps=ps)
