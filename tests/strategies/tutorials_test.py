"""TensorFlow's tutorials with another import; they stand in tests/distributed/tutorials."""

import pytest

pytestmark = pytest.mark.slow
TUTORIALS = [
    ("multi_worker_with_keras", 2),
    ("multi_worker_with_ctl", 2),
    ("mirrored_with_keras", 1),
    ("mirrored_with_ctl", 1),
]


@pytest.mark.parametrize(
    ("api", "name", "workers"),
    [(api, *each) for api in ("keras", "tf_keras") for each in TUTORIALS],
)
def test_tutorials_run_with_another_import(train, tmp_path, name, workers, api):
    train(f"tutorials/{name}.py", api, "ours", tmp_path, workers=workers)


@pytest.mark.parametrize(("name", "workers"), TUTORIALS)
def test_they_are_what_the_stock_strategies_run(train, tmp_path, name, workers):
    train(f"tutorials/{name}.py", "tf_keras", "stock", tmp_path, workers=workers)
