"""The order of what workers exchange; the checks stand in tests/distributed/order.py."""

import pytest

from tests.support.check_jobs import checks_of

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("communication", "api", "workers", "replicas"),
    [
        ("shared_memory", "keras", 2, 1),
        pytest.param("shared_memory", "keras", 2, 2, marks=SLOW),
        pytest.param("horovod", "tf_keras", 3, 1, marks=SLOW),
        pytest.param("tensorflow", "keras", 2, 2, marks=SLOW),
    ],
    indirect=["communication"],
)
@pytest.mark.parametrize(
    "check", checks_of("order.py", slow=["each_of_two_models_is_what_it_is_alone"])
)
def test_workers_exchange_in_the_same_order(
    run_check, check, communication, api, workers, replicas
):
    run_check(check, api, replicas, workers=workers)
