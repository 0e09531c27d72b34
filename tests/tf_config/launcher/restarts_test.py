"""Starts of a job with fewer workers; nothing is started here."""

import pytest

from tf_config import ClusterConfigError, Task
from tf_config.hosts import Host, parse_hosts
from tf_config.launcher import ssh as remote
from tf_config.launcher.job import JobSpec
from tf_config.launcher.restarts import Restarts
from tf_config.launcher.ssh import HostResources, HostUnreachable
from tf_config.roles import Roles

NOTES = []


@pytest.fixture
def reachable(monkeypatch):
    """The hosts that answer; a test may take some out."""
    hosts = {"a", "b", "c"}

    def probe(counts, ssh, files, interface):
        for host in counts:
            if host.name not in hosts:
                raise HostUnreachable("Each host must be reachable", host.name, "no route")
        return {host: HostResources(tuple(range(10000, 10009)), 2) for host in counts}

    monkeypatch.setattr(remote, "probe", probe)
    return hosts


def workers(commands):
    return [(str(command.task), command.host.name) for command in commands]


def restarts(job, least):
    NOTES.clear()
    return Restarts(job, {}, least, NOTES.append)


def job(workers=4, hosts="a:2,b,c", **options):
    return JobSpec(Roles(workers, **options), ["echo"], hosts=parse_hosts(hosts))


def test_a_host_that_is_gone_is_left_out_with_its_workers_and_servers(reachable):
    plan = restarts(job(ps=1), 2)
    assert len(plan.commands(0)) == 5
    reachable.remove("a")
    assert workers(plan.commands(1)) == [("worker 0", "b"), ("worker 1", "c"), ("ps 0", "b")]
    assert NOTES == [
        "a cannot be reached: 'no route'; the job continues with 2 of its workers, renumbered"
    ]
    reachable.remove("b")
    with pytest.raises(ClusterConfigError, match="Each host must be reachable"):
        plan.commands(2)


@pytest.mark.parametrize("least", [None, 4])
def test_all_hosts_are_needed_unless_it_is_said_otherwise(reachable, least):
    plan = restarts(job(), least)
    reachable.remove("c")
    with pytest.raises(HostUnreachable):
        plan.commands(1)


def test_a_first_start_needs_all_hosts(reachable):
    reachable.remove("c")
    with pytest.raises(HostUnreachable):
        restarts(job(), 1).commands(0)


def test_a_host_of_the_chief_or_the_last_one_of_servers_is_needed(reachable):
    reachable.remove("a")
    with pytest.raises(HostUnreachable):
        restarts(job(3, chief=True), 1).commands(1)
    alone = JobSpec(Roles(2, 1), ["echo"], hosts=parse_hosts("b,c"), ps_hosts=[Host("a")])
    with pytest.raises(HostUnreachable):
        restarts(alone, 1).commands(1)


def test_a_worker_is_left_out_when_it_failed_twice_in_a_row(reachable):
    plan = restarts(job(), 2)
    for index in (1, 2, 1):
        plan.record_failure(Task("worker", index))
    assert len(plan.commands(1)) == 4
    plan.record_failure(Task("worker", 1))
    assert [host for _, host in workers(plan.commands(2))] == ["a", "b", "c"]
    for _ in range(2):
        plan.record_failure(Task("worker", 1))
    assert [host for _, host in workers(plan.commands(3))] == ["a", "c"]
    for _ in range(2):
        plan.record_failure(Task("worker", 1))
    assert len(plan.commands(4)) == 2
    assert len(NOTES) == 2


def test_a_host_that_returns_is_taken_again(reachable):
    plan = restarts(job(), 1)
    plan.commands(0)
    reachable -= {"a", "c"}
    assert workers(plan.commands(1)) == [("worker 0", "b")]
    assert plan.find_returned() == []
    reachable.add("a")
    assert plan.find_returned() == ["a"]
    assert [host for _, host in workers(plan.commands(1))] == ["a", "a", "b"]
    assert NOTES == [
        "a cannot be reached: 'no route'; c cannot be reached: 'no route'; the job continues with "
        "1 of its workers, renumbered",
        "a can be reached again; the job continues with 3 of its workers, renumbered",
    ]
    notes = len(NOTES)
    assert plan.find_returned() == [] and len(plan.commands(2)) == 3
    assert len(NOTES) == notes  # of c, the user has been told
    reachable.add("c")
    assert len(plan.commands(3)) == 4


def test_a_worker_that_was_left_out_stays_so_when_a_host_returns(reachable):
    plan = restarts(job(), 1)
    reachable.remove("b")
    assert [host for _, host in workers(plan.commands(1))] == ["a", "a", "c"]
    for _ in range(2):
        plan.record_failure(Task("worker", 1))
    assert [host for _, host in workers(plan.commands(2))] == ["a", "c"]
    reachable.add("b")
    assert [host for _, host in workers(plan.commands(3))] == ["a", "b", "c"]


def test_servers_are_never_left_out(reachable):
    plan = restarts(job(ps=2), 1)
    for _ in range(3):
        plan.record_failure(Task("ps", 1))
    assert len(plan.commands(1)) == 6


def test_a_job_begins_with_as_many_as_remain():
    with pytest.raises(ClusterConfigError, match="Received: --min-workers 5 for 4. Lower it"):
        restarts(job(), 5)
