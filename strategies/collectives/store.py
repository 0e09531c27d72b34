"""The first worker's key-value store, at its own address, where the workers meet."""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tf_config import Address, ClusterConfigError, Task

_REQUEST_TIMEOUT_SECONDS = 5.0


class StoreHandler(BaseHTTPRequestHandler):
    """Answers PUT and GET of one path each, as Horovod's rendezvous does."""

    timeout = _REQUEST_TIMEOUT_SECONDS

    def do_PUT(self) -> None:
        """Keeps what is sent."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.entries[self.path] = body  # type: ignore[attr-defined]
        self._answer(HTTPStatus.OK)

    def do_GET(self) -> None:
        """Gives back what was sent, or NOT_FOUND."""
        body = self.server.entries.get(self.path)  # type: ignore[attr-defined]
        if body is None:
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            self._answer(HTTPStatus.OK, body)

    def log_message(self, *arguments: Any) -> None:
        """Says nothing: the workers ask ten times a second."""

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class StoreServer(ThreadingHTTPServer):
    """A key-value store over HTTP."""

    def __init__(self, *arguments: Any):
        self.entries: dict[str, bytes] = {}
        super().__init__(*arguments)


def serve(
    server_class: type[socketserver.BaseServer], address: Address, task: Task, *arguments: Any
) -> socketserver.BaseServer:
    """Starts a server at `address`, in a thread of its own.

    Args:
      server_class: what is started.
      address: where it listens.
      task: whose address that is.
      *arguments: those of `server_class` after the address.

    Raises:
      ClusterConfigError: if the address is taken.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    attributes = {
        "daemon_threads": True,
        "allow_reuse_port": False,  # newer Pythons share the port between two servers
        "address_family": family,
    }
    server_class = type("Server", (server_class,), attributes)
    for host in (address.host, ""):
        try:
            server = server_class((host, address.port), *arguments)  # type: ignore[arg-type]
        except OSError as error:
            # Behind address translation the name that others use is not one of this machine's,
            # and a pod's name is known some seconds after its start.
            unknown = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            if unknown and host:
                continue
            raise ClusterConfigError(
                f"The first worker listens at its own address. Received: {address} for {task}, "
                f"but {error.strerror}. Choose a free port of this machine in TF_CONFIG."
            ) from None
        break
    threading.Thread(target=server.serve_forever, name="rendezvous", daemon=True).start()
    return server
