"""Where servers listen."""

import errno
import socket

import pytest

from tf_config.bind_address import bind_first, listening_hosts

EVERYWHERE = (socket.AF_INET, "")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["127.0.1.1"], (EVERYWHERE,)),
        (["127.0.0.1", "::1"], (EVERYWHERE,)),
        (["127.0.1.1", "10.0.0.7"], ((socket.AF_INET, "node1"), EVERYWHERE)),
        (["10.0.0.7"], ((socket.AF_INET, "node1"), EVERYWHERE)),
    ],
)
def test_a_name_that_stands_for_loopback_here_is_reached_at_all_addresses(
    monkeypatch, found, expected
):
    answer = [(None, None, None, "", (address, 0)) for address in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: answer)
    assert listening_hosts("node1") == expected


def test_what_says_itself_that_it_is_loopback_stays_there():
    for host in ("localhost", "127.0.0.1"):
        assert listening_hosts(host)[0] == (socket.AF_INET, host)


def test_a_name_that_is_not_known_yet_is_tried():
    assert listening_hosts("pod-0.invalid")[0] == (socket.AF_INET, "pod-0.invalid")


def test_addresses_of_ipv6():
    assert listening_hosts("fd00::7") == ((socket.AF_INET6, "fd00::7"), (socket.AF_INET6, "::"))


@pytest.mark.parametrize("error", [OSError(errno.EADDRNOTAVAIL, "none here"), socket.gaierror()])
def test_a_host_that_is_not_here_is_passed_over(error):
    tried = []

    def bind(host):
        tried.append(host)
        if host:
            raise error
        return "everywhere"

    assert bind_first("10.1.2.3", bind) == "everywhere"
    assert tried == ["10.1.2.3", ""]


def test_a_port_in_use_is_an_error_at_once():
    tried = []

    def bind(host):
        tried.append(host)
        raise OSError(errno.EADDRINUSE, "in use")

    with pytest.raises(OSError, match="in use"):
        bind_first("10.1.2.3", bind)
    assert tried == ["10.1.2.3"]
