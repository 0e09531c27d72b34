"""A key-value store over HTTP, as Horovod's rendezvous is one: PUT, GET and DELETE of a path.

A store with a secret answers signed requests only.
"""

from __future__ import annotations

import http.client
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tf_config.address import Address
from tf_config.secret import is_signed, signature

_REQUEST_SECONDS = 5.0
# Above any entry: the largest is Gloo's, some hundred bytes for each of Horovod's processes.
_LONGEST_BODY = 1 << 24
_SIGNATURE = "X-Keras-Strategies-Signature"


class StoreHandler(BaseHTTPRequestHandler):
    """Hands each request to its server's `answer`."""

    timeout = _REQUEST_SECONDS

    def do_PUT(self) -> None:
        """Keeps what is sent."""
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit() and int(length) <= _LONGEST_BODY):
            self.close_connection = True
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        self._answer(self.rfile.read(int(length)))

    def do_GET(self) -> None:
        """Gives back what was sent, or NOT_FOUND."""
        self._answer()

    def do_DELETE(self) -> None:
        """Forgets what was sent."""
        self._answer()

    def log_message(self, *arguments: Any) -> None:
        """Says nothing: processes ask many times a second."""

    def _answer(self, body: bytes = b"") -> None:
        server: Any = self.server
        given = self.headers.get(_SIGNATURE, "")
        if server.admits(self.command, self.path, body, given):
            status, content = server.answer(self.command, self.path, body)
        else:
            status, content = HTTPStatus.FORBIDDEN, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class StoreServer(ThreadingHTTPServer):
    """Keeps what is sent, for as long as it serves.

    Args:
      address: the host and the port that it listens on.
      handler: answers a request.
      secret: signs requests; "" admits those of everybody.

    Raises:
      OSError: if it cannot listen there.
    """

    daemon_threads = True
    allow_reuse_port = False  # newer Pythons share the port between two servers

    def __init__(self, address: tuple[str, int], handler: Any = StoreHandler, secret: str = ""):
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.entries: dict[str, bytes] = {}
        self._secret = secret
        super().__init__(address, handler)

    def admits(self, method: str, path: str, body: bytes, given: str) -> bool:
        """Returns whether a request with this signature is answered."""
        return is_signed(self._secret, given, method.encode(), path.encode(), body)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: who asks sees that there is no answer, and may be no task of ours."""

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


def ask(
    address: Address, method: str, path: str, body: bytes = b"", secret: str = ""
) -> tuple[int, bytes]:
    """Returns the status and the content of a store's answer; status 0 if there is none."""
    given = signature(secret, method.encode(), path.encode(), body)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_REQUEST_SECONDS)
    try:
        connection.request(method, path, body, {_SIGNATURE: given} if given else {})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
