"""SIGTERM is delayed until a process is ready for it, or until a limit."""

import signal

import pytest

PROGRAM = """
import ctypes, os, signal, sys, threading, time
from strategies.utils.delayed_termination import DelayedTermination

how = sys.argv[1]
if how == "own handler":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
termination = DelayedTermination(0.5 if how == "stuck" else 60)
if how == "not sent":
    termination.release()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    sys.exit(3)
threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM]).start()
if how == "stuck":  # in C, where no handler of Python's runs
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
while not termination.is_requested:
    time.sleep(0.01)
print("released", flush=True)
termination.release()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("released", -signal.SIGTERM, "released\n"),
        ("stuck", 128 + signal.SIGTERM, ""),
        ("own handler", 7, ""),
        ("not sent", 3, ""),
    ],
)
def test_a_process_ends_when_it_is_released_or_in_time(forked, how, code, text):
    process = forked.popen([forked.python, forked.script(PROGRAM), how])
    ended, output = forked.finish(process, 60)
    assert ended == code, output
    assert output.endswith(text)
