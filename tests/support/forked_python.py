"""An executable that runs a Python program in a fork of the server; see fork_server.py."""

import json
import os
import signal
import socket
import struct
import sys

SOCKET, PYTHON, READ = "", "", {}
# SETTINGS
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    arguments = sys.argv[1:]
    if any(os.environ.get(name) != value for name, value in READ.items()):
        os.execv(PYTHON, [PYTHON, *arguments])
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(SOCKET)
    except OSError:  # the server has ended; its directory has its errors
        os.execv(PYTHON, [PYTHON, *arguments])
    message = json.dumps(
        {
            "argv": arguments,
            "environ": dict(os.environ),
            "directory": os.getcwd(),
            "ignored": [n for n in FORWARDED if signal.getsignal(n) == signal.SIG_IGN],
        }
    ).encode()
    # From here on a signal is the fork's.
    number = struct.Struct("!i")
    for each in FORWARDED:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, lambda given, _: connection.sendall(number.pack(given)))
    socket.send_fds(connection, [struct.pack("!I", len(message))], [0, 1, 2])
    connection.sendall(message)
    for stream in (0, 1, 2):
        os.close(stream)
    data = connection.recv(number.size)
    code = number.unpack(data)[0] if len(data) == number.size else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pause()
    os._exit(code)


if __name__ == "__main__":
    main()
