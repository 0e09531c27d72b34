import pytest

from tf_config import Address, ClusterConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node1:2222", "node1", 2222),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[::1]:65535", "::1", 65535),
        ("a.b-c.example.:80", "a.b-c.example.", 80),
        ("job-worker-0.ns.svc:2222", "job-worker-0.ns.svc", 2222),
    ],
)
def test_an_address_is_read_and_written_the_same(text, host, port):
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (None, "Write it as a string"),
        (2222, "Write it as a string"),
        ("node1", "no port"),
        ("node1:", "number from 1 to 65535"),
        ("node1:0", "number from 1 to 65535"),
        ("node1:65536", "number from 1 to 65535"),
        ("node1:-1", "number from 1 to 65535"),
        ("node1:٣", "number from 1 to 65535"),
        ("node1:22 22", "number from 1 to 65535"),
        (":2222", "host name or an IP address"),
        ("a b:2222", "host name or an IP address"),
        ("-a:2222", "host name or an IP address"),
        ("::1:2222", "with an IPv6 address in brackets"),
        ("[::g]:2222", "IPv6 address in the brackets"),
        ("grpc://node1:2222", "without a scheme"),
    ],
)
def test_a_wrong_address_is_refused_with_rule_and_value(value, rule):
    with pytest.raises(ClusterConfigError) as error:
        Address.parse(value)
    assert rule in str(error.value)
    assert f"Received: {ascii(value)}" in str(error.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [("localhost:1", "127.0.0.1:1"), ("Node:1", "node:1"), ("[::1]:1", "[0:0::1]:1")],
)
def test_two_names_of_one_place_have_the_same_endpoint(one, other):
    assert Address.parse(one).endpoint == Address.parse(other).endpoint
