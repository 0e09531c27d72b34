"""A signal for a thread, and programs that use it themselves."""

import asyncio
import faulthandler
import os
import signal
import tempfile
import threading

import pytest

from strategies.diagnostics.signal_request import SignalRequest

NUMBER = signal.SIGUSR1


@pytest.fixture
def request_():
    # A watchdog of another test may have handled it in this process.
    former = signal.signal(NUMBER, signal.SIG_DFL), signal.set_wakeup_fd(-1)
    request = SignalRequest(NUMBER)
    yield request
    request.stop()
    signal.signal(NUMBER, former[0])
    signal.set_wakeup_fd(former[1])


def send():
    os.kill(os.getpid(), NUMBER)


def test_a_signal_is_seen_once_by_another_thread(request_):
    request_.start()
    assert not request_.is_pending()
    send()
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(request_.is_pending() for _ in range(2)))
    thread.start()
    thread.join()
    assert seen == [True, False]


def test_other_signals_are_not_taken_for_it(request_):
    request_.start()
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)
    assert not request_.is_pending()


def test_a_handler_of_the_program_is_left_alone(request_):
    received = []
    signal.signal(NUMBER, lambda number, _: received.append(number))
    request_.start()
    send()
    assert received == [NUMBER]
    assert not request_.is_pending()


def test_a_signal_that_the_program_ignores_is_left_alone(request_):
    signal.signal(NUMBER, signal.SIG_IGN)
    request_.start()
    send()
    assert not request_.is_pending()
    assert signal.getsignal(NUMBER) == signal.SIG_IGN


def test_a_handler_that_python_does_not_know_is_left_alone(request_):
    with tempfile.TemporaryFile() as file:
        faulthandler.register(NUMBER, file)
        request_.start()
        send()
        faulthandler.unregister(NUMBER)
        assert file.seek(0, os.SEEK_END) > 0
    assert not request_.is_pending()


def test_a_handler_that_is_installed_later_takes_its_place(request_):
    request_.start()
    received = []
    signal.signal(NUMBER, lambda number, _: received.append(number))
    send()
    assert received == [NUMBER]
    assert not request_.is_pending()
    request_.stop()
    assert callable(signal.getsignal(NUMBER))


def test_a_loop_of_asyncio_handles_it(request_):
    request_.start()
    received = []

    async def wait():
        asyncio.get_running_loop().add_signal_handler(NUMBER, received.append, 1)
        send()
        while not received:
            await asyncio.sleep(0.01)

    asyncio.run(wait())
    assert received == [1]
    assert not request_.is_pending()


def test_without_the_wakeup_descriptor_the_main_thread_passes_it_on(request_):
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    before = signal.set_wakeup_fd(writable)
    request_.start()
    send()
    assert request_.is_pending()
    assert signal.set_wakeup_fd(before) == writable
    assert os.read(readable, 9) == bytes([NUMBER])
    os.close(readable)
    os.close(writable)


def test_it_arrives_while_the_descriptor_is_taken_for_a_time(request_):
    """As by a checkpoint that delays SIGTERM."""
    request_.start()
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    former = signal.set_wakeup_fd(writable)
    send()
    signal.set_wakeup_fd(former)
    assert request_.is_pending()
    send()
    assert request_.is_pending()
    os.close(readable)
    os.close(writable)


def test_a_forked_child_has_the_default_action(request_):
    request_.start()
    child = os.fork()
    if child == 0:
        os._exit(signal.getsignal(NUMBER) != signal.SIG_DFL)
    assert os.waitpid(child, 0)[1] == 0
    assert signal.getsignal(NUMBER) != signal.SIG_DFL


def test_another_thread_than_the_main_one_changes_nothing(request_):
    thread = threading.Thread(target=request_.start)
    thread.start()
    thread.join()
    assert signal.getsignal(NUMBER) == signal.SIG_DFL


def test_afterwards_the_signal_has_its_default_action(request_):
    request_.start()
    request_.stop()
    assert signal.getsignal(NUMBER) == signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
