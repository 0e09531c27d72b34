"""The launcher's agent on another host, controlled by its standard input.

The launcher starts it as `python -m tf_config.launcher.agent`, for example over ssh.

The first line of input is JSON: either `{"ports": 2, "files": [...]}`, to report this host's
resources, or `{"argv": [...], "environ": {...}, "size": [80, 24]}`, to run a program; both have the
`directory` in which the launcher was started. Each later line is the number of a signal for the
program, or empty as a heartbeat of the launcher. If the input ends, or nothing arrives for 30
seconds, the launcher is gone, and the agent ends the program.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from tf_config.builder import free_ports
from tf_config.launcher.agent_messages import message
from tf_config.launcher.commands import cores, gpus
from tf_config.launcher.descriptors import wait_for_descriptors
from tf_config.launcher.exit_diagnosis import ExitDiagnosis, describe_exit
from tf_config.launcher.orphan_reaper import OrphanReaper
from tf_config.launcher.process_memory import resident_of
from tf_config.launcher.pty_process import PtyProcess, shell_code
from tf_config.launcher.settings import METRICS_VARIABLE
from tf_config.launcher.sidecar import LEFT, REJOINS, UNSYNCHRONIZED, Sidecar

_SILENCE_SECONDS = 30.0
_GRACE_SECONDS = 5.0
_TICK_SECONDS = 1.0
_METRICS_SECONDS = 2.0
_INPUT, _OUTPUT = 0, 1


def main() -> int:
    """Executes the request on standard input; returns the program's exit code as a shell would."""
    line = b""
    while not line.endswith(b"\n"):
        step = os.read(_INPUT, 1)  # byte by byte: the input after the line is read by the relay
        if not step:
            return 2
        line += step
    request = json.loads(line)
    try:
        os.chdir(request["directory"])
    except OSError as error:
        print(f"{request['directory']}: {error.strerror}", file=sys.stderr, flush=True)
        return 1
    if "argv" not in request:
        # A login script may have printed text without a final line break.
        print(f"\n{json.dumps(_answer(request))}", flush=True)
        return 0
    # Started before the program: a scheduler that ends the job kills the agent, but not the
    # program, which is in a process group of its own.
    with OrphanReaper() as reaper:
        return _run(request, reaper)


def _run(request: dict[str, Any], reaper: OrphanReaper) -> int:
    """Runs the program of a request; returns its exit code as a shell would."""
    environ = {**os.environ, **request["environ"]}
    notes: queue.SimpleQueue[str] = queue.SimpleQueue()
    sidecar = Sidecar.beside(environ, notes.put)
    diagnosis = ExitDiagnosis()
    try:
        environ |= {**diagnosis.environ, **({} if sidecar is None else sidecar.environ)}
        session = PtyProcess(request["argv"], environ, tuple(request["size"]))
    except OSError as error:
        print(f"tf-config: error: {request['argv'][0]}: {error.strerror}", flush=True)
        return 127
    reaper.watch(session.popen.pid)
    if sidecar is not None:
        sidecar.start(session.popen.pid)
    has_metrics = METRICS_VARIABLE in environ
    code = _Relay(session, sidecar, diagnosis, notes, has_metrics).run()
    reaper.forget(session.popen.pid)
    return code


def _answer(request: dict[str, Any]) -> dict[str, object]:
    return {
        "ports": free_ports(request["ports"], ""),
        "cores": cores(),
        "gpus": gpus(),
        "missing": [name for name in request["files"] if not Path(name).is_file()],
        "interfaces": [name for _, name in socket.if_nameindex()],
    }


class _Relay:
    """Passes a program's output to the launcher, and the launcher's signals to the program.

    A single thread does all of this, and never blocks until the launcher reads: if the launcher is
    suspended or cut off, its signals, or its silence, must still be noticed.
    """

    def __init__(
        self,
        session: PtyProcess,
        sidecar: Sidecar | None,
        diagnosis: ExitDiagnosis,
        notes: queue.SimpleQueue[str],
        has_metrics: bool,
    ):
        self._session = session
        self._diagnosis = diagnosis
        self._sidecar = sidecar
        self._notes = notes
        self._pending = b""  # output for which the pipe to the launcher had no room
        self._lines = b""  # the beginning of an incomplete line of input
        self._heard = time.monotonic()
        self._gone = False  # whether the launcher is gone
        self._next_metrics = 0.0 if has_metrics else float("inf")

    def run(self) -> int:
        """Relays until the program has ended and its output is passed on; returns its exit code."""
        os.set_blocking(_OUTPUT, False)
        session = self._session
        try:
            while session.popen.poll() is None and not self._gone:
                self._step(_TICK_SECONDS)
            if self._gone:
                self._end()
        finally:
            session.kill()
        # The program is dead, so only the rest of its output must still be passed on. It may exceed
        # the capacity of the pipe, so writing now waits for the launcher.
        os.set_blocking(session.terminal, False)
        os.set_blocking(_OUTPUT, True)
        while not self._gone and (data := self._pending + session.read()):
            self._pending = b""
            self._write(data)
        cause = self._diagnosis.cause(session.popen.pid, session.popen.returncode)
        if cause and not self._gone:
            self._write(f"tf-config: {describe_exit(session.popen.returncode)}{cause}\n".encode())
        if self._sidecar is not None and self._sidecar.is_unsynchronized:
            self._write(message(UNSYNCHRONIZED))
        elif self._sidecar is not None and self._sidecar.is_leaving:
            self._write(message(LEFT))
        elif self._sidecar is not None and self._sidecar.can_rejoin:
            self._write(message(REJOINS))
        return shell_code(session.popen.returncode)

    def _step(self, timeout: float) -> None:
        self._diagnosis.sample_memory(self._session.popen.pid)
        # While the pipe to the launcher is full, the program's output is not read.
        sources = [_INPUT] if self._pending else [_INPUT, self._session.terminal]
        ready = wait_for_descriptors(sources, timeout, [_OUTPUT] if self._pending else [])
        if _INPUT in ready:
            self._take_input(os.read(_INPUT, 1 << 12))
        if not self._pending and time.monotonic() >= self._next_metrics:
            self._next_metrics = time.monotonic() + _METRICS_SECONDS
            self._pending = self._metrics()
        elif not self._pending and not self._notes.empty():
            self._pending = f"tf-config: {self._notes.get()}\n".encode()
        elif self._session.terminal in ready:
            self._pending = self._session.read()
            self._diagnosis.observe_output(self._pending.decode(errors="replace"))
            if not self._pending:
                time.sleep(0.05)  # no process has the terminal open: the program is about to end
        if self._pending:
            self._write(self._pending)
        if time.monotonic() - self._heard > _SILENCE_SECONDS:
            self._gone = True

    def _metrics(self) -> bytes:
        """Returns a message with the program's memory and numbers; see `ssh.metrics_of`."""
        report = self._diagnosis.report()
        text = None if report is None else report.to_json()
        return message(json.dumps([resident_of(self._session.popen.pid), text]).encode())

    def _take_input(self, data: bytes) -> None:
        if not data:
            self._gone = True
        self._heard = time.monotonic()
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            if line:
                self._session.signal(int(line))

    def _write(self, data: bytes) -> None:
        try:
            self._pending = data[os.write(_OUTPUT, data) :]
        except BlockingIOError:
            self._pending = data
        except OSError:
            self._gone = True

    def _end(self) -> None:
        self._session.signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._session.popen.poll() is None and time.monotonic() < deadline:
            # Discards output, so that a program that writes while it ends is not blocked.
            if wait_for_descriptors([self._session.terminal], 0.1):
                self._session.read()


if __name__ == "__main__":
    sys.exit(main())
