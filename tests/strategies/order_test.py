"""The order of what workers exchange; what is checked stands in tests/scripts/order.py."""

import pytest

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("communication", "api", "workers", "replicas"),
    [
        ("horovod", "keras", 2, 1),
        pytest.param("tensorflow", "keras", 2, 1, marks=SLOW),
        *(
            pytest.param(communication, *case, marks=SLOW)
            for communication in ("horovod", "tensorflow")
            for case in [("keras", 2, 2), ("tf_keras", 3, 1)]
        ),
    ],
    indirect=["communication"],
)
def test_workers_exchange_in_the_same_order(train, communication, api, workers, replicas):
    train("order.py", api, replicas, workers=workers)
