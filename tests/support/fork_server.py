"""Python processes that have imported TensorFlow already: forks of one that has.

To import TensorFlow, Keras and this package takes about 7 seconds of CPU, most of what a short
test on four processes costs. The server imports them once. `python` is an executable that stands
for `sys.executable`: it hands its arguments, environment, directory, standard streams and signals
to a fork of the server, and ends as that ends. Programs need not know of it; `tf-config run`,
itself started by it, starts its tasks by it.

A test of what starts, ends or is told by the operating system (process groups, /proc, SIGSTOP)
uses `sys.executable`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import random
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from tests.support import costs

ROOT = Path(__file__).resolve().parent.parent.parent
_CLIENT = Path(__file__).with_name("forked_python.py")
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")
# What TensorFlow and Keras read as they are imported; with others a program gets a new process.
AT_IMPORT = ("KERAS_BACKEND", "KERAS_HOME", "TF_USE_LEGACY_KERAS", "TF_ENABLE_ONEDNN_OPTS")


class ForkServer:
    """The server, as the tests see it.

    Args:
      directory: a directory for its socket and its executable.

    Attributes:
      python: the executable that stands for `sys.executable`.
    """

    def __init__(self, directory: Path):
        path = directory / "socket"
        self.python = str(directory / "python")
        client = _CLIENT.read_text()
        # -I and -S: 12 ms, where a start with the packages' directories takes 25.
        shebang = f"#!/usr/bin/env -S {sys.executable} -IS\n"
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        environ.pop("TF_CONFIG", None)
        read = {name: environ.get(name) for name in AT_IMPORT}
        settings = f"SOCKET, PYTHON, READ = {str(path)!r}, {sys.executable!r}, {read!r}\n"
        Path(self.python).write_text(shebang + client.replace("# SETTINGS\n", settings))
        Path(self.python).chmod(0o755)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen(64)
        command = [sys.executable, __file__, self.python, str(listening.fileno())]
        self._errors = directory / "errors"
        errors = self._errors.open("wb")
        self._process = subprocess.Popen(
            command,
            pass_fds=[listening.fileno()],
            stdin=subprocess.PIPE,
            # A pipe, that Python's streams do not take theirs for files that can be sought in.
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env=environ,
        )
        errors.close()
        listening.close()

    def close(self) -> None:
        """Ends the server, and all forks that still run; prints what ended it before, if it did."""
        if self._process.poll() is not None:
            print(f"The fork server had ended: {self._errors.read_text(errors='replace')}")
        # A fork of the test process may hold on to the pipe, so its end is not enough.
        self._process.terminate()
        self._process.communicate()


def _serve(python: str, listening: socket.socket) -> None:
    """Forks for each request, in a loop; returns in the forks, and when its input is closed."""
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    selector.register(reader, selectors.EVENT_READ)
    connections: dict[int, socket.socket] = {}
    tests: dict[int, str] = {}

    own = os.getpid()

    def stop(*_: object) -> None:
        if os.getpid() != own:  # a fork that gets a signal before it is a program of its own
            os._exit(128 + signal.SIGTERM)
        for pid in connections:
            _kill(pid, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                stop()
            elif key.fileobj is listening:
                connection, _ = listening.accept()
                # A client that is killed meanwhile is no reason for all others to go without.
                try:
                    request = _received(connection)
                except OSError:
                    request = None
                if request is None:
                    connection.close()
                    continue
                message, streams = request
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    selector.close()
                    for other in (listening, connection, *connections.values()):
                        other.close()
                    os.close(reader)
                    os.close(writer)
                    _become(python, message, streams)
                    return
                for stream in streams:
                    os.close(stream)
                connections[pid] = connection
                tests[pid] = message["environ"].get("PYTEST_CURRENT_TEST", "")
                selector.register(connection, selectors.EVENT_READ, pid)
            elif key.fileobj == reader:
                os.read(reader, 1 << 12)
                for ended, seconds in _reap(connections, selector):
                    costs.record(tests.pop(ended), "programs", seconds)
            elif key.fileobj.fileno() >= 0:  # its fork may have been reaped a moment ago
                try:
                    data = key.fileobj.recv(_NUMBER.size)
                except OSError:
                    data = b""
                number = _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else signal.SIGKILL
                _kill(key.data, number)
                if not data:
                    selector.unregister(key.fileobj)


def _received(connection: socket.socket) -> tuple[dict, list[int]] | None:
    """Returns the request of a client, and its three streams; None if it went away."""
    data, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    if len(data) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(data)[0]
    content = b""
    while len(content) < length:
        part = connection.recv(length - len(content))
        if not part:
            return None
        content += part
    return json.loads(content), list(streams)


def _kill(pid: int, number: int) -> None:
    """Sends a signal to a fork and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:  # it has not come to lead its group yet
            os.kill(pid, number)


def _reap(
    connections: dict[int, socket.socket], selector: selectors.BaseSelector
) -> Iterator[tuple[int, float]]:
    """Tells the clients whose forks have ended; yields these and their processor seconds."""
    while connections:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        connection = connections.pop(pid)
        if connection in selector.get_map():
            selector.unregister(connection)
        with contextlib.suppress(OSError):
            connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
        connection.close()
        yield pid, usage.ru_utime + usage.ru_stime


def _become(python: str, message: dict, streams: list[int]) -> None:
    """Makes this fork what a new process of the client's would be."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.environ.clear()
    os.environ.update(message["environ"])
    os.chdir(message["directory"])
    sys.executable = python
    sys.argv = message["argv"]
    inherited = [path for path in sys.path[1:] if path != str(ROOT)]
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*given, *inherited]
    random.seed()
    import numpy as np

    np.random.seed()
    for number in message["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()


def _run() -> None:
    """Runs what `sys.argv` says, as `python` would."""
    program, *arguments = sys.argv
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if program == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    if program == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[1:]]
        code = compile(arguments[0], "<string>", "exec")
    else:
        sys.path.insert(0, str(Path(program).resolve().parent))
        module.__file__ = program
        code = compile(Path(program).read_bytes(), program, "exec")
    exec(code, module.__dict__)


def _main() -> None:
    python, number = sys.argv[1:]
    listening = socket.socket(fileno=int(number))
    # A session may have no test that asks for it.
    asked, _, _ = select.select([listening, sys.stdin], [], [])
    if sys.stdin in asked:
        return
    import absl.flags  # noqa: F401
    import keras  # noqa: F401
    import tensorflow  # noqa: F401
    import tf_keras  # noqa: F401

    import strategies  # noqa: F401
    import tf_config.cli  # noqa: F401

    gc.collect()
    gc.freeze()
    # Behind a freeze Python takes all young objects for old ones, and looks through them too often.
    gc.set_threshold(50_000, 20, 50)
    _serve(python, listening)
    _run()


if __name__ == "__main__":
    _main()
