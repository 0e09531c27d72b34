import socket

import pytest

from tf_config import ClusterConfigError, Task, local_cluster
from tf_config.builder import free_ports


def test_a_local_cluster_has_the_tasks_asked_for_on_ports_of_their_own():
    cluster = local_cluster(workers=2, chief=True, ps=1)
    assert list(cluster.addresses) == [
        Task("chief", 0), Task("worker", 0), Task("worker", 1), Task("ps", 0),
    ]  # fmt: skip
    assert {address.host for address in cluster.addresses.values()} == {"127.0.0.1"}
    assert len({address.port for address in cluster.addresses.values()}) == 4


def test_a_port_in_use_is_not_chosen(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("tf_config.builder._PORTS", range(port, port + 1))
        with pytest.raises(ClusterConfigError, match="1 tasks, 0 free ports on 127.0.0.1"):
            free_ports(1)


@pytest.mark.parametrize("counts", [{"workers": -1}, {"ps": -1}, {"workers": 0}])
def test_impossible_numbers_of_tasks_are_refused(counts):
    with pytest.raises(ClusterConfigError):
        local_cluster(**counts)
