"""A key-value store over HTTP, like Horovod's rendezvous server: PUT, GET and DELETE of a path.

A store with a secret answers only signed requests.
"""

from __future__ import annotations

import http.client
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from tf_config.address import Address
from tf_config.cluster import Task
from tf_config.http_server import HttpServer
from tf_config.rendezvous.store import name_of
from tf_config.secret import is_signed, secret_of, signature

_REQUEST_SECONDS = 5.0
# Larger than any entry: the largest is Gloo's, some hundred bytes per Horovod process.
_LONGEST_BODY = 1 << 24
_SIGNATURE = "X-Keras-Strategies-Signature"


class StoreHandler(BaseHTTPRequestHandler):
    """Passes each authorized request to the `answer` method of the server."""

    timeout = _REQUEST_SECONDS

    def do_PUT(self) -> None:
        """Stores an entry."""
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit() and int(length) <= _LONGEST_BODY):
            self.close_connection = True
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        self._answer(self.rfile.read(int(length)))

    def do_GET(self) -> None:
        """Sends an entry, or the status NOT_FOUND."""
        self._answer()

    def do_DELETE(self) -> None:
        """Deletes an entry."""
        self._answer()

    def log_message(self, *arguments: Any) -> None:
        """Logs nothing: processes send many requests per second."""

    def _answer(self, body: bytes = b"") -> None:
        server: Any = self.server
        signed = self.headers.get(_SIGNATURE, "")
        if server.admits(self.command, self.path, body, signed):
            status, content = server.answer(self.command, self.path, body)
        else:
            status, content = HTTPStatus.FORBIDDEN, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class StoreServer(HttpServer):
    """A server that stores entries in memory.

    Args:
      address: the host and port to listen on.
      secret: the secret with which requests must be signed; "" admits unsigned requests.

    Raises:
      OSError: if the server cannot listen on the address.
    """

    def __init__(self, address: tuple[str, int], secret: str = ""):
        self.entries: dict[str, bytes] = {}
        self._secret = secret
        super().__init__(address, StoreHandler)

    def admits(self, method: str, path: str, body: bytes, signed: str) -> bool:
        """Returns whether a request has a valid signature."""
        return is_signed(self._secret, signed, method.encode(), path.encode(), body)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Executes a request; returns the status and the content of the answer."""
        if method == "PUT":
            self.entries[path] = body
        elif method == "DELETE":
            self.entries.pop(path, None)
        elif path not in self.entries:
            return HTTPStatus.NOT_FOUND, b""
        return HTTPStatus.OK, self.entries[path] if method == "GET" else b""


class HttpStore:
    """A client of a `StoreServer`, or of Horovod's rendezvous server, as a `Store`.

    Args:
      address: the address of the server.
      scope: the scope of the entries.
      secret: the secret that signs the requests; None for the secret of this process.

    Attributes:
      is_refused: whether the server refused the last request, because it has a different secret.
    """

    def __init__(self, address: Address, scope: str, secret: str | None = None):
        self._address = address
        self._scope = scope
        self._secret = secret_of() if secret is None else secret
        self.is_refused = False

    def put(self, key: Task | str, value: bytes) -> bool:
        """Writes an entry; see `Store`."""
        status, _ = self._request("PUT", key, value)
        return status == HTTPStatus.OK

    def get(self, key: Task | str) -> bytes | None:
        """Returns an entry; see `Store`."""
        status, body = self._request("GET", key)
        return body if status == HTTPStatus.OK else None

    def _request(self, method: str, key: Task | str, body: bytes = b"") -> tuple[int, bytes]:
        path = f"/{self._scope}/{name_of(key)}"
        status, content = send_request(self._address, method, path, body, self._secret)
        self.is_refused = status == HTTPStatus.FORBIDDEN
        return status, content


def send_request(
    address: Address, method: str, path: str, body: bytes = b"", secret: str = ""
) -> tuple[int, bytes]:
    """Sends a request to a store; returns the status (0 without an answer) and the content."""
    signed = signature(secret, method.encode(), path.encode(), body)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_REQUEST_SECONDS)
    try:
        connection.request(method, path, body, {_SIGNATURE: signed} if signed else {})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
