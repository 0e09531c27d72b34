"""DistributedEmbedding; what is checked on several workers stands in tests/scripts."""

import pytest

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("api", "workers", "replicas"),
    [
        ("keras", 2, 1),
        ("keras", 1, 0),
        *(
            pytest.param(*case, marks=SLOW)
            for case in [
                ("tf_keras", 1, 0),
                ("keras", 1, 1),
                ("keras", 1, 2),
                ("keras", 4, 1),
                ("keras", 2, 2),
                ("tf_keras", 2, 1),
                ("tf_keras", 1, 2),
            ]
        ),
    ],
)
def test_it_does_what_a_stock_layer_does_in_one_process(train, api, workers, replicas):
    train("embedding.py", api, replicas, workers=workers)


def test_so_it_does_where_there_is_no_horovod(job, train):
    job.hide_horovod()
    train("embedding.py", "keras")
