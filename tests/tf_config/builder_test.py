import socket

import pytest

from tf_config import ClusterConfigError, Task, local_cluster
from tf_config.builder import cluster, free_ports, place, ports_from
from tf_config.hosts import Host
from tf_config.roles import Roles


def test_a_local_cluster_has_the_tasks_asked_for_on_ports_of_their_own():
    spec = local_cluster(workers=2, chief=True, ps=1)
    assert list(spec.addresses) == [
        Task("chief", 0), Task("worker", 0), Task("worker", 1), Task("ps", 0),
    ]  # fmt: skip
    assert {address.host for address in spec.addresses.values()} == {"127.0.0.1"}
    assert len({address.port for address in spec.addresses.values()}) == 4


def test_a_port_in_use_is_not_chosen(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("tf_config.builder.PORTS", range(port, port + 1))
        with pytest.raises(ClusterConfigError, match="1 tasks, 0 free ports on 127.0.0.1"):
            free_ports(1)


@pytest.mark.parametrize("counts", [{"workers": -1}, {"ps": -1}, {"workers": 0}])
def test_impossible_numbers_of_tasks_are_refused(counts):
    with pytest.raises(ClusterConfigError):
        local_cluster(**counts)


HOSTS = [Host("a", 2), Host("b", 2)]


@pytest.mark.parametrize(
    ("roles", "ps_hosts", "placed"),
    [
        (Roles(4), [], "a a b b"),
        (Roles(3, chief=True), [], "a a b b"),
        (Roles(2, ps=3), [], "a a a b a"),
        (Roles(1, ps=3), [Host("c"), Host("d", 9)], "a c d c"),
        (Roles(3, evaluator=True), [], "a a b b"),
        (Roles(1, chief=True, ps=1, evaluator=True), [], "a a a b"),
    ],
)
def test_where_tasks_are_placed(roles, ps_hosts, placed):
    where = place(roles, HOSTS, ps_hosts)
    assert list(where) == list(roles.tasks)
    assert " ".join(host.name for host in where.values()) == placed


def test_workers_beyond_the_slots_and_ps_hosts_without_ps_are_refused():
    with pytest.raises(ClusterConfigError, match="5 tasks for the 4 slots of a, b"):
        place(Roles(5), HOSTS)
    with pytest.raises(ClusterConfigError, match="requires parameter servers. Received: none"):
        place(Roles(1), HOSTS, [Host("c")])


def test_workers_elsewhere_could_not_reach_a_server_on_localhost():
    with pytest.raises(ClusterConfigError, match="can reach it. Received: .*a.*localhost"):
        place(Roles(1, ps=1), HOSTS, [Host("localhost")])
    with pytest.raises(ClusterConfigError, match="can reach it"):
        place(Roles(1, ps=1), [Host("localhost")], [Host("c")])
    place(Roles(1, ps=1), [Host("localhost")], [Host("127.0.0.1")])


def test_ports_count_up_on_each_host_and_the_evaluator_has_none():
    where = place(Roles(3, ps=1, evaluator=True), HOSTS)
    names = {task: host.name for task, host in where.items()}
    spec = cluster(names, {"a": [2222, 2223, 2224], "b": [2222, 2223]})
    addresses = [str(address) for address in spec.addresses.values()]
    assert addresses == ["a:2222", "a:2223", "b:2222", "a:2224"]
    with pytest.raises(ClusterConfigError, match="Use a lower --port"):
        cluster(names, {"a": ports_from(65535, 3), "b": [2222]})
