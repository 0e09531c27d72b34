"""A call to a server ends when the server does, and not before."""

import socket
import threading
import time

import pytest

from strategies.server.calls import Calls, ServerLost
from tf_config import Address


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def call(listener):
    return Calls(3, Address("127.0.0.1", listener.getsockname()[1]))


def test_a_call_gives_what_the_function_gives(call):
    assert call(lambda: 42) == 42
    with pytest.raises(KeyError, match="of the function"):
        call(lambda: {}["of the function"])


def test_calls_run_side_by_side(call):
    """A call that waits for another one is answered; threads are used again."""
    ready = threading.Event()
    waiting = threading.Thread(target=lambda: call(lambda: ready.wait(10)))
    waiting.start()
    call(ready.set)
    waiting.join(5)
    assert not waiting.is_alive()
    before = threading.active_count()
    for _ in range(20):
        call(lambda: None)
    assert threading.active_count() <= before + 1


def test_a_slow_server_is_waited_for(call):
    """The listener accepts nothing and answers nothing, as a paused process."""
    assert call(lambda: time.sleep(2.5) or "late") == "late"


def test_a_server_that_is_gone_ends_the_call(call, listener):
    never = threading.Event()
    threading.Timer(0.2, listener.close).start()
    start = time.monotonic()
    with pytest.raises(ServerLost, match=r"Received: ps 3 \(127.0.0.1:\d+\) is gone"):
        call(never.wait)
    assert time.monotonic() - start < 5
    with pytest.raises(ServerLost, match="ps 3"):
        call(lambda: "never asked")
    never.set()
