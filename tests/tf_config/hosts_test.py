import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_config import ClusterConfigError
from tf_config.hosts import Host, parse_hostfile, parse_hosts

NAMES = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9](\.[a-z0-9]{1,5}){0,2}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address).map(str),
)
HOSTS = st.builds(
    Host,
    NAMES.filter(lambda name: name not in ("localhost", "127.0.0.1", "::1")),
    st.integers(1, 99),
    st.none() | st.from_regex(r"[a-z_][a-z0-9_.-]{0,7}", fullmatch=True),
)


def format_hosts(hosts):
    return ",".join(
        ("" if host.user is None else f"{host.user}@")
        + (f"[{host.name}]" if ":" in host.name else host.name)
        + f":{host.slots}"
        for host in hosts
    )


@given(st.lists(HOSTS, min_size=1, max_size=6, unique_by=lambda host: host.name))
def test_what_is_written_is_read_back(hosts):
    assert parse_hosts(format_hosts(hosts)) == hosts


@given(st.lists(HOSTS, min_size=1, max_size=6, unique_by=lambda host: host.name))
def test_all_forms_of_a_hostfile_say_the_same(hosts):
    lists = [format_hosts([host]) for host in hosts]
    assert parse_hostfile("\n".join(lists)) == hosts
    slots = [" slots=".join(item.rsplit(":", 1)) for item in lists]
    assert parse_hostfile("# all\n\n" + "  # ours\n".join(slots)) == hosts


@given(st.text())
def test_any_text_is_a_list_or_an_error(text):
    for parse in (parse_hosts, parse_hostfile):
        try:
            assert parse(text)
        except ClusterConfigError as error:
            assert "\n" not in str(error)


def test_a_host_that_stands_twice_has_the_slots_of_both():
    assert parse_hosts("a,b:2,a:3") == [Host("a", 4), Host("b", 2)]
    assert parse_hostfile("a\nb\na\n") == [Host("a", 2), Host("b", 1)]


def test_open_mpis_bound_on_slots_is_read():
    assert parse_hostfile("a slots=2 max-slots=4") == [Host("a", 2)]
    with pytest.raises(ClusterConfigError, match=r"slots cannot exceed max_slots.*nodes, line 2"):
        parse_hostfile("b\na slots=5 max_slots=4", "nodes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Hosts must have the form"),
        ("a,,b", "Received: ''"),
        ("a:b", "Received: 'a:b'"),
        ("a:0", "slots of a host must be from 1 to"),
        ("fd00::7:2", "an IPv6 address in brackets"),
        ("[fd00::7", "an IPv6 address in brackets"),
        ("-oProxyCommand=x", "Hosts must have the form|An address must have"),
        ("-l@a", "Hosts must have the form"),
        ("a_b!", "An address must have"),
        ("localhost,a", "a name by which all others can reach it"),
        ("127.0.0.1,::1", "Hosts must have the form"),
    ],
)
def test_wrong_lists(text, message):
    with pytest.raises(ClusterConfigError, match=message):
        parse_hosts(text)


@pytest.mark.parametrize("line", ["a slots=x", "a slots=", "a slots=-1", "a cpu=2", "a b"])
def test_wrong_lines_of_a_hostfile_are_named(line):
    with pytest.raises(ClusterConfigError, match="line 1|Received"):
        parse_hostfile(line)
    with pytest.raises(ClusterConfigError, match="must contain at least one host"):
        parse_hostfile("# nothing\n")
