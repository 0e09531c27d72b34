"""DistributedEmbedding; what is checked on several workers stands in tests/scripts."""

import pytest

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("api", "workers", "replicas"),
    [
        ("keras", 2, 1),
        *(
            pytest.param(*case, marks=SLOW)
            for case in [
                ("keras", 1, 0),
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


@SLOW
def test_so_it_does_where_there_is_no_horovod(job, train):
    job.hide_horovod()
    train("embedding.py", "keras")


@pytest.mark.parametrize(
    ("api", "workers"),
    [
        ("keras", 2),
        *(pytest.param(*c, marks=SLOW) for c in [("keras", 1), ("keras", 3), ("tf_keras", 2)]),
    ],
)
def test_the_life_of_rows(train, api, workers):
    train("embedding_life.py", api, workers=workers)


@pytest.mark.parametrize(
    ("api", "numbers"),
    [
        pytest.param("keras", (1, 2), marks=SLOW),
        pytest.param("keras", (1, 4, 2, 1), marks=SLOW),
        pytest.param("tf_keras", (1, 2), marks=SLOW),
    ],
)
def test_rows_are_restored_by_any_number_of_workers(train, tmp_path, api, numbers):
    directory = tmp_path / "saved"
    directory.mkdir()
    for workers in numbers:
        train("embedding_checkpoint.py", directory, api, workers=workers, timeout=500)
