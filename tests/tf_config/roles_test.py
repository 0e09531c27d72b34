"""Roles of processes that a scheduler only counts."""

import pytest

from tf_config import ClusterConfigError, Task, TFConfig
from tf_config.roles import Roles


def ranked(total, rank):
    """Returns what a scheduler without roles tells the process of this rank."""
    workers = ", ".join(f'"n{index}:1"' for index in range(total))
    return TFConfig.from_json(
        f'{{"cluster": {{"worker": [{workers}]}}, "task": {{"type": "worker", "index": {rank}}}}}'
    )


def test_roles_are_given_in_the_order_of_ranks():
    roles = Roles.of(6, ps=2, chief=True, evaluator=True)
    given = [roles.assign_to(ranked(6, rank)) for rank in range(6)]
    assert [str(config.task) for config in given] == [
        "chief 0", "worker 0", "worker 1", "ps 0", "ps 1", "evaluator 0",
    ]  # fmt: skip
    assert {config.cluster for config in given} == {given[0].cluster}
    assert given[0].cluster.to_dict() == {
        "chief": ["n0:1"],
        "worker": ["n1:1", "n2:1"],
        "ps": ["n3:1", "n4:1"],
    }


def test_more_than_ten_workers_keep_their_order():
    config = Roles.of(12, chief=True).assign_to(ranked(12, 11))
    assert config.task == Task("worker", 10)
    assert config.address.host == "n11"


@pytest.mark.parametrize("workers", [1, 3])
def test_as_many_processes_as_roles(workers):
    with pytest.raises(ClusterConfigError, match="Received: 2 processes"):
        Roles(workers).assign_to(ranked(2, 0))
