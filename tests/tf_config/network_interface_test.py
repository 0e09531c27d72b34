"""The address at which other machines reach this one."""

from tf_config import network_interface


def test_the_address_for_another_host_is_that_of_the_route_to_it(monkeypatch):
    """And that of the default route if there is none to it, or if it is this machine."""
    known = {"10.1.2.3": "10.1.2.1", "here": "127.0.0.1", "192.0.2.1": "172.16.0.5"}

    class Probe:
        def __init__(self, *arguments):
            self.address = ""

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def connect(self, other):
            if other[0] not in known:
                raise OSError("no route")
            self.address = known[other[0]]

        def getsockname(self):
            return self.address, 4711

    monkeypatch.setattr(network_interface.socket, "socket", Probe)
    for host, expected in (
        ("10.1.2.3", "10.1.2.1"), ("here", "172.16.0.5"), ("away", "172.16.0.5"),
        (None, "172.16.0.5"),
    ):  # fmt: skip
        assert network_interface.own_address(host) == expected
