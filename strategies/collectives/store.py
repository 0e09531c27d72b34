"""The first worker's key-value store, at its own address, where the workers meet."""

from __future__ import annotations

import errno
import socket
import socketserver
import threading

from tf_config import Address, ClusterConfigError, Task


def serve(
    server_class: type[socketserver.BaseServer], address: Address, task: Task, *arguments: object
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
