"""Forwards TCP connections, every byte later by the same time: a server that is far away.

    far.py HOST:PORT MILLISECONDS

Prints the port that it listens at; ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

(host, port), delay = sys.argv[1].split(":"), float(sys.argv[2]) / 1000


async def main() -> None:
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    back, forth = await asyncio.open_connection(host, port)
    await asyncio.gather(forward(reader, forth), forward(back, writer))


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(1 << 20):
        # In order: all wait equally long.
        loop.call_later(delay, writer.write, data)
    loop.call_later(delay, writer.close)


def end() -> None:
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end, daemon=True).start()
asyncio.run(main())
