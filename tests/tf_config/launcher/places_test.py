"""Places of an elastic job, and workers that take them; without processes."""

import socket
import time

import pytest

from tf_config import Address, ClusterConfigError, Task, local_cluster
from tf_config.launcher.places import (
    HAS_LEFT,
    IS_DONE,
    OVER,
    Attempt,
    JobOverError,
    PlaceServer,
    TakenPlace,
    describe_end,
)
from tf_config.rendezvous.waiting import Deadline
from tf_config.worker_range import WorkerRange

SECRET = "0123456789abcdef"
VACANT = [Task("worker", 2), Task("worker", 3)]


@pytest.fixture
def server():
    server = PlaceServer(WorkerRange(2, 4), "127.0.0.1", 0, SECRET)
    yield server
    server.close()


@pytest.fixture
def attempt():
    return Attempt(
        local_cluster(workers=4, ps=1), VACANT, Address("127.0.0.1", 5), {"COLOUR": "blue"}
    )


@pytest.fixture
def take(server):
    """Takes places, which are vacant again at the end of the test."""
    places = []

    def take(secret=SECRET, seconds=5.0, port=4321):
        place = TakenPlace(Address("127.0.0.1", server.port), secret)
        places.append(place)
        return place, place.take(None, port, Deadline(seconds))

    yield take
    for place in places:
        place.leave(IS_DONE)


def wait_until(is_so):
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_worker_gets_the_first_vacant_place_with_its_own_address(server, attempt, take):
    server.begin(attempt)
    _, first = take()
    assert first.config.task == VACANT[0] and first.config.address == Address("127.0.0.1", 4321)
    assert first.variables == {"COLOUR": "blue"} and first.rendezvous == Address("127.0.0.1", 5)
    others = {**attempt.cluster.addresses, VACANT[0]: first.config.address}
    assert first.config.cluster.addresses == others
    _, second = take(port=4322)
    assert second.config.task == VACANT[1]
    assert server.joined == VACANT
    with pytest.raises(ClusterConfigError, match=r"has a vacant place. Received: 4 present, of "):
        take(port=4323)


@pytest.mark.parametrize(("what", "departures"), [(IS_DONE, 0), (HAS_LEFT, 1), (None, 1)])
def test_the_place_of_a_worker_that_has_ended_is_vacant_again(
    server, attempt, take, what, departures
):
    server.begin(attempt)
    place, _ = take()
    if what is None:  # its host is lost
        place._connection.close()
    else:
        place.leave(what)
    wait_until(lambda: not server.joined)
    assert server.departures == departures
    said = [server.notes.get(timeout=5) for _ in range(2)]
    assert said[0] == "worker 2 joins the job, on 127.0.0.1"
    assert (what or "is lost") in said[1], said
    take()
    take(port=4322)


def test_a_worker_learns_that_the_job_is_over(server, attempt, take):
    server.begin(attempt)
    place, _ = take()
    assert place.end_of_job() is None
    server.end(OVER)
    wait_until(lambda: place.end_of_job() is not None)
    server.begin(attempt)
    other, _ = take()
    server.end(OVER)
    wait_until(lambda: other.end_of_job() in (OVER, "the connection to the job has ended"))


def test_a_worker_waits_for_a_job_that_is_starting(server, attempt, take):
    with pytest.raises(ClusterConfigError, match="Received: the job is starting or ending"):
        take(seconds=0.3)
    server.begin(attempt)
    assert take()[1].config.task == VACANT[0]


def test_the_secret_is_required(server, attempt, take):
    server.begin(attempt)
    with pytest.raises(ClusterConfigError, match="KERAS_STRATEGIES_SECRET is not the job's"):
        take(secret="another secret 000", seconds=0.3)
    assert "rejected a connection without this job's" in server.notes.get(timeout=5)
    assert not server.joined


@pytest.mark.parametrize("data", [b"\n", b"GET / HTTP/1.0\r\n\r\n", b"x" * 1000, b""])
def test_whatever_arrives_the_server_goes_on(server, attempt, take, data):
    server.begin(attempt)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(data)
    assert take()[1].config.task == VACANT[0]


def test_a_place_that_nobody_serves(attempt):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = TakenPlace(Address("127.0.0.1", unused.getsockname()[1]), SECRET)
        with pytest.raises(ClusterConfigError, match="The job must answer within"):
            place.take(None, 4321, Deadline(0.2))


def test_a_job_that_is_over_is_not_joined_again():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", unused.getsockname()[1])
        with pytest.raises(JobOverError):
            TakenPlace(address, SECRET, rejoins=True).take(None, 4321, Deadline(30))


def test_ends_are_described():
    assert describe_end(0, has_left=False) == IS_DONE
    assert describe_end(0, has_left=True) == HAS_LEFT
    assert describe_end(9, has_left=True) == "has failed with exit code 9"
