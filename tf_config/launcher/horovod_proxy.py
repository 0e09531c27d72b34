"""A proxy between a task's Horovod process and the rendezvous of the job."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from http import HTTPStatus

from tf_config.address import Address
from tf_config.cluster import TFConfig
from tf_config.launcher.reports import REPORTS
from tf_config.rendezvous.http_store import StoreServer, send_request
from tf_config.rendezvous.waiting import Deadline
from tf_config.secret import SECRET_VARIABLE

# Where a proxy listens: only the task's own process connects to it.
HERE = "127.0.0.1"
_POLL_SECONDS = 0.1


class HorovodProxy(StoreServer):
    """Forwards the requests of Horovod's process to the store, and receives strategies' reports.

    Horovod waits only 1.5 seconds for its rendezvous, and its requests have no signature. The proxy
    holds each request until the store has the entry, and signs the requests that it forwards. It
    listens on this machine only.

    Args:
      config: the task's configuration.
      at: the address of the store.
      timeout: the number of seconds that a process waits for the others.
      secret: the job's secret.
      reports: collects the reports.
      note: receives messages.
    """

    def __init__(
        self,
        config: TFConfig,
        at: Address,
        timeout: float,
        secret: str,
        reports: set[str],
        note: Callable[[str], None],
    ):
        super().__init__((HERE, 0), secret=secret)
        self._config = config
        self._at = at
        self._timeout = timeout
        self._reports = reports
        self._note = note
        self._is_late = False
        self._server_name = f"the rendezvous beside {config.cluster.training_tasks[0]} at {at}"
        # With this prefix, the store of an earlier job at that address has no entries for this one.
        text = repr(config.cluster.to_dict()).encode()
        self._prefix = f"/{hashlib.sha256(text).hexdigest()[:16]}"

    def admits(self, method: str, path: str, body: bytes, signed: str) -> bool:
        """Returns whether a request is answered; Horovod's requests have no signature."""
        return not path.startswith(f"/{REPORTS}/") or super().admits(method, path, body, signed)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Returns the store's answer, once the store has one."""
        if path.startswith(f"/{REPORTS}/"):
            self._reports.add(path.removeprefix(f"/{REPORTS}/"))
            return HTTPStatus.OK, b""
        self._reports.add("horovod")
        deadline = Deadline(self._timeout, self._note, _POLL_SECONDS)
        while True:
            status, content = send_request(
                self._at, method, self._prefix + path, body, self._secret
            )
            if status == HTTPStatus.OK or method == "DELETE":
                return HTTPStatus.OK, content
            waiting = f"{self._config.task} waits in Horovod's init() for {self._who(path, status)}"
            # Horovod repeats a failed request; once one has timed out, the others fail immediately.
            if self._is_late or deadline.is_over:
                if not self._is_late:
                    self._note(f"{waiting}: it gives up after {deadline.elapsed:.0f} s")
                self._is_late = True
                is_reached = status == HTTPStatus.NOT_FOUND
                return status if is_reached else HTTPStatus.SERVICE_UNAVAILABLE, b""
            deadline.tick(f"{waiting}: {deadline.elapsed:.0f} s of {self._timeout:g} s")

    def _who(self, path: str, status: int) -> str:
        """Returns what a request waits for, given the status of the store's answer."""
        tasks = self._config.cluster.training_tasks
        if status == HTTPStatus.FORBIDDEN:
            return f"{self._server_name}, which has another {SECRET_VARIABLE}"
        if status != HTTPStatus.NOT_FOUND:
            return self._server_name
        key = path.rpartition("/")[2].removeprefix("rank_")
        if path.startswith("/global/") and key.isdigit() and int(key) < len(tasks):
            return f"{tasks[int(key)]} to start Horovod as well"
        return "another process of Horovod"
