"""A key-value store over HTTP, as Horovod's rendezvous is one: PUT, GET and DELETE of a path."""

from __future__ import annotations

import http.client
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tf_config.address import Address

_REQUEST_SECONDS = 5.0


class StoreHandler(BaseHTTPRequestHandler):
    """Hands each request to its server's `answer`."""

    timeout = _REQUEST_SECONDS

    def do_PUT(self) -> None:
        """Keeps what is sent."""
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def do_GET(self) -> None:
        """Gives back what was sent, or NOT_FOUND."""
        self._answer()

    def do_DELETE(self) -> None:
        """Forgets what was sent."""
        self._answer()

    def log_message(self, *arguments: Any) -> None:
        """Says nothing: processes ask many times a second."""

    def _answer(self, body: bytes = b"") -> None:
        status, content = self.server.answer(self.command, self.path, body)  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class StoreServer(ThreadingHTTPServer):
    """Keeps what is sent, for as long as it serves.

    Args:
      address: the host and the port that it listens on.
      handler: answers a request.

    Raises:
      OSError: if it cannot listen there.
    """

    daemon_threads = True
    allow_reuse_port = False  # newer Pythons share the port between two servers

    def __init__(self, address: tuple[str, int], handler: Any = StoreHandler):
        self.entries: dict[str, bytes] = {}
        super().__init__(address, handler)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Returns the status and the content of an answer."""
        if method == "PUT":
            self.entries[path] = body
        elif method == "DELETE":
            self.entries.pop(path, None)
        elif path not in self.entries:
            return HTTPStatus.NOT_FOUND, b""
        return HTTPStatus.OK, self.entries[path] if method == "GET" else b""

    def start(self) -> None:
        """Answers from now on, in a thread of its own."""
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()


def ask(address: Address, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Returns the status and the content of a store's answer; status 0 if there is none."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_REQUEST_SECONDS)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
