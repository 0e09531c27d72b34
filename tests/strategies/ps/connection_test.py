"""How a worker waits for a server that may be gone."""

import threading

from strategies.ps.connection import ServerConnection, join_while_there
from tf_config import Address
from tf_config.builder import free_ports


def test_nobody_waits_for_the_response_of_a_server_that_has_ended():
    (port,) = free_ports(1, "")
    server, answered = ServerConnection(0, Address("127.0.0.1", port)), threading.Event()
    thread = threading.Thread(target=answered.wait, daemon=True)
    thread.start()
    join_while_there([thread], server, threading.TIMEOUT_MAX)
    assert thread.is_alive() and not server.is_there()
    answered.set()
