"""DistributedEmbedding; the checks on several workers stand in tests/distributed."""

import pytest

from tests.support.check_jobs import checks_of

SLOW = pytest.mark.slow
LONG_LIVES = [
    "a_worker_without_ids_takes_part",
    "duplicates_are_added_up_before_their_gradient_is_squared",
    "eviction_by_age_and_by_count",
    "growth_keeps_what_was_there_and_what_travels_is_counted",
    "the_same_row_wherever_and_whenever_it_comes",
    "rows_are_loaded_from_files_of_which_the_last_one_is_whole",
    "an_id_is_admitted_in_the_step_of_its_third_time_where_a_sketch_counts",
    "a_small_sketch_refuses_no_id_that_came_often_enough",
    "the_number_of_ids_of_all_workers_together_is_bounded",
]


@pytest.mark.parametrize(
    ("api", "workers", "replicas"),
    [
        ("keras", 2, 1),
        *(
            pytest.param(*case, marks=SLOW)
            for case in [
                ("tf_keras", 1, 0),
                ("keras", 3, 1),
                ("tf_keras", 2, 2),
            ]
        ),
    ],
)
@pytest.mark.parametrize(
    "check",
    # Each optimizer in one process: variables/optimizer_traits_test.py.
    checks_of(
        "embedding.py",
        slow=[
            "sgd",
            "momentum",
            "adagrad",
            "rmsprop",
            "adadelta",
            "ftrl",
            "lion",
            "adamw_on_servers",
            "a_model_that_is_built_in_fit",
            "rows_that_a_batch_does_not_touch_have_no_gradient",
        ],
    ),
)
def test_it_does_what_a_stock_layer_does_in_one_process(run_check, check, api, workers, replicas):
    run_check(check, api, replicas, workers=workers)


@SLOW
@pytest.mark.parametrize("check", checks_of("embedding.py", only=["adam", "adagrad"]))
def test_it_does_what_a_stock_layer_does_without_horovod(job, run_check, check):
    job.hide_horovod()
    run_check(check, "keras")


@pytest.mark.parametrize(
    ("api", "workers"),
    [
        ("keras", 2),
        *(pytest.param(*c, marks=SLOW) for c in [("keras", 1), ("tf_keras", 3)]),
    ],
)
@pytest.mark.parametrize("check", checks_of("embedding_life.py", slow=LONG_LIVES))
def test_the_life_of_rows(run_check, check, api, workers):
    run_check(check, api, workers=workers)


@pytest.mark.parametrize(
    ("api", "numbers"),
    [
        pytest.param("keras", (1, 4, 2, 1), marks=SLOW),
        pytest.param("tf_keras", (1, 2), marks=SLOW),
    ],
)
def test_rows_are_restored_by_any_number_of_workers(train, tmp_path, api, numbers):
    directory = tmp_path / "saved"
    directory.mkdir()
    for workers in numbers:
        train("embedding_checkpoint.py", directory, api, workers=workers, timeout=500)
