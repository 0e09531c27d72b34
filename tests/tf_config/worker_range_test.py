"""Ranges of numbers of workers."""

import pytest

from tf_config import ClusterConfigError
from tf_config.worker_range import WorkerRange, started_workers


@pytest.mark.parametrize("text", ["2:4", "1:2", "3:10000"])
def test_a_range_is_written_as_it_is_read(text):
    assert str(WorkerRange.parse(text)) == text
    assert WorkerRange.from_env({"KERAS_STRATEGIES_WORKERS": text}) == WorkerRange.parse(text)


@pytest.mark.parametrize(
    "text", ["", "2", "2:", ":4", "4:2", "2:2", "0:2", "2:4:6", "2:99999", "-1:2"]
)
def test_what_is_no_range_is_an_error(text):
    with pytest.raises(ClusterConfigError, match="A range of workers must be MIN:MAX"):
        WorkerRange.parse(text)


@pytest.mark.parametrize("text", ["", "0", "5", "two", "-1"])
def test_the_number_of_started_workers_is_checked(text):
    with pytest.raises(ClusterConfigError, match="must be a number from 1 to 4"):
        started_workers({"KERAS_STRATEGIES_STARTED": text}, 4)
