"""Tables of a DistributedEmbedding beyond training; the checks stand in tests/distributed."""

import json

import pytest

from tests.support.check_jobs import PROGRAMS, checks_of

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("api", "workers", "replicas"),
    [
        ("keras", 1, 1),
        *(
            pytest.param(*case, marks=SLOW)
            for case in [
                ("keras", 1, 2),
                ("tf_keras", 3, 1),
            ]
        ),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "embedding_tables.py",
        slow=[
            "what_is_exported_looks_up_as_the_model_does_where_tensorflow_alone_loads_it",
            "a_served_table_has_shared_rows",
            "a_shared_row_is_not_left_out_where_rows_are_loaded",
            "plain_files_of_others_are_read",
            "a_shared_row_is_saved_with_its_slot_variables_and_goes_on",
        ],
    ),
)
def test_own_optimizers_shared_rows_plain_files_and_serving(
    run_check, check, api, workers, replicas
):
    run_check(check, api, replicas, workers=workers)


@SLOW
def test_saving_takes_no_copy_of_the_rows(forked, tmp_path):
    program = PROGRAMS / "embedding_saving.py"
    code, output = forked.finish(forked.popen([forked.python, program, tmp_path]), timeout=60)
    assert code == 0, output


@SLOW
@pytest.mark.parametrize("files", [2, 4])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_save_that_is_killed_leaves_the_last_one(forked, train, tmp_path, workers, files):
    # A worker writes four files, and then the first one `latest`.
    script = "embedding_killed.py"
    directory = tmp_path / "rows"
    code, output = forked.run(
        "--workers", workers, "--start-timeout", 60, PROGRAMS / script, directory, "save", files
    )
    assert code != 0 and "nobody was killed" not in output, output
    latest = json.loads((directory / "latest").read_text())
    assert latest["folders"] == ["000001"], latest
    train(script, directory, "check", workers=workers)
