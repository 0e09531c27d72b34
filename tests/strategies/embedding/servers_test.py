"""DistributedEmbedding on parameter servers; the checks stand in tests/distributed."""

import json

import numpy as np
import pytest

from strategies.ps.embedding_rows import RemoteRowVariable
from strategies.variables.row_variable import new_name
from tests.support.check_jobs import checks_of

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("mode", "steps", "workers", "ps", "options"),
    [
        ("async", 40, 2, 2, {"max_merge": 3, "send_queue_size": 5}),
        pytest.param("half_async", 40, 2, 2, {}, marks=slow),
        pytest.param("geo", 10, 2, 1, {"geo_steps": 3, "geo_rows": "servers"}, marks=slow),
        pytest.param("sync", 5, 3, 2, {}, marks=slow),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "servers_embedding.py",
        slow=[
            "each_row_is_in_one_workers_part",
            "what_is_loaded_is_saved_again_before_an_optimizer_is_made",
            "a_step_of_a_program_sees_the_steps_before_it",
            "what_is_saved_is_of_one_moment",
            "servers_write_their_rows_where_they_see_the_directory",
            "tables_of_a_width_share_the_graphs_of_a_load",
        ],
    ),
)
def test_no_change_of_a_row_is_lost(run_check, check, mode, steps, workers, ps, options):
    run_check(check, mode, steps, json.dumps(options), workers=workers, ps=ps)


@pytest.mark.parametrize(
    ("api", "workers", "ps", "replicas", "cache"),
    [
        ("keras", 2, 2, 1, 0),
        *(
            pytest.param(*job, marks=slow)
            for job in [
                ("tf_keras", 2, 1, 1, 0),
                ("keras", 1, 2, 1, 0),
                ("keras", 2, 1, 2, 0),
                ("tf_keras", 1, 1, 2, 100),
                ("keras", 1, 2, 1, "used"),
            ]
        ),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "servers_geo_rows.py",
        slow=[
            "an_id_is_admitted_by_all_its_occurrences",
            "each_row_of_a_step_is_penalized_once",
        ],
    ),
)
def test_workers_train_rows_between_exchanges(run_check, check, api, workers, ps, replicas, cache):
    run_check(check, api, replicas, cache, workers=workers, ps=ps)


@pytest.mark.parametrize(
    ("api", "workers", "ps", "replicas", "cache"),
    [("keras", 2, 2, 1, "used"), pytest.param("tf_keras", 2, 1, 2, 100, marks=slow)],
)
@pytest.mark.parametrize("check", checks_of("servers_geo_rows.py", only=["what_is_kept_of_a_row"]))
def test_workers_keep_rows_that_they_train(run_check, check, api, workers, ps, replicas, cache):
    run_check(check, api, replicas, cache, workers=workers, ps=ps)


@slow
@pytest.mark.parametrize(
    ("api", "workers", "ps", "replicas"),
    [("keras", 1, 2, 2), ("tf_keras", 2, 3, 1)],
)
@pytest.mark.parametrize("check", checks_of("embedding.py"))
def test_in_step_it_does_what_a_stock_layer_does_in_one_process(
    run_check, check, api, workers, ps, replicas
):
    run_check(check, api, replicas, workers=workers, ps=ps)


@slow
@pytest.mark.parametrize(("api", "workers", "ps"), [("keras", 2, 3), ("tf_keras", 1, 2)])
@pytest.mark.parametrize("check", checks_of("embedding_life.py"))
def test_the_life_of_rows(run_check, check, api, workers, ps):
    run_check(check, api, workers=workers, ps=ps)


@slow
def test_rows_go_from_workers_to_servers_and_back(train, tmp_path):
    directory = tmp_path / "saved"
    directory.mkdir()
    for workers, ps, way in [
        (2, 0, "rows"),
        (1, 2, "checkpoint"),
        (2, 3, "rows"),
        (1, 1, "weights"),
        (2, 0, "checkpoint"),
        (1, 2, "weights"),
        (1, 0, "rows"),
    ]:
        train(
            "embedding_checkpoint.py", directory, "keras", way, workers=workers, ps=ps, timeout=500
        )


@slow
@pytest.mark.parametrize(
    ("mode", "workers", "ps", "replicas"),
    [("sync", 2, 0, 2), ("sync", 2, 2, 2), ("async", 2, 1, 2)],
)
@pytest.mark.parametrize("check", checks_of("embedding_steps.py"))
def test_a_step_is_one_of_all_replicas(run_check, check, mode, workers, ps, replicas):
    run_check(check, mode, replicas, workers=workers, ps=ps)


def test_a_worker_does_not_change_rows_by_itself():
    # A table's name of its own: slots of later tests are recognized by such names.
    rows = RemoteRowVariable([], np.zeros(3, np.float32), True, new_name(), None)
    with pytest.raises(ValueError, match="Only an optimizer can read the rows of an embedding"):
        rows.value()
    slot = rows.make_slot(f"{rows.table_name}momentum", np.zeros([1, 3], np.float32))
    slot.assign(np.zeros([1, 3], np.float32))  # as Keras does with what it saved
    with pytest.raises(ValueError, match="set together with the rows. Received: other values"):
        slot.assign(np.ones([1, 3], np.float32))
    with pytest.raises(ValueError, match="Only an optimizer can write to the rows of an embedding"):
        rows.assign_add(np.ones([1, 3], np.float32))
