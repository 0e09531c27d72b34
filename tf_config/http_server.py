"""An HTTP server of this process: its address family, its threads, and its end."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HttpServer(ThreadingHTTPServer):
    """A server that listens as soon as it is created, and answers once it is started.

    Args:
      address: the host and port to listen on.
      handler: answers one request.

    Raises:
      OSError: if the server cannot listen on the address.
    """

    daemon_threads = True
    allow_reuse_port = False  # otherwise, two servers could share the port in newer Python versions

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]):
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._is_started = False
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: the client notices the missing answer, and may belong to another job."""

    def start(self) -> None:
        """Starts a thread that answers requests."""
        self._is_started = True
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """Stops answering requests, and frees the address; may be called before `start`."""
        if self._is_started:
            self.shutdown()  # waits for the thread; without a thread, it would wait forever
        self.server_close()
