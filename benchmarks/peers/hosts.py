"""Runs a program as workers of several hosts, which are namespaces of this machine; needs root.

    $ python benchmarks/peers/hosts.py HOSTS WORKERS_A_HOST MEGABITS PROGRAM [ARGUMENT ...]

Each host has a network and process numbers of its own, so its workers share memory with each other
alone. The hosts are connected by a switch; each sends so many megabits a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

NETWORK, PORT = "10.213.0", 23450
_SWITCH, _BURST = "ks-bench", "256kb"


def name_of(host: int) -> str:
    return f"ks-bench-{host}"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextlib.contextmanager
def linked(hosts: int, megabits: float) -> Iterator[None]:
    """Makes the hosts' networks, and removes them; those too that a killed run has left."""
    _remove(hosts)
    try:
        ip("link", "add", _SWITCH, "type", "bridge")
        ip("link", "set", _SWITCH, "up")
        for host in range(hosts):
            name, plug, end = name_of(host), f"ks-plug-{host}", f"ks-end-{host}"
            ip("netns", "add", name)
            ip("link", "add", end, "type", "veth", "peer", "name", plug)
            ip("link", "set", plug, "master", _SWITCH, "up")
            ip("link", "set", end, "netns", name)
            ip("-n", name, "address", "add", f"{NETWORK}.{host + 1}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
            shape = ["rate", f"{megabits}mbit", "burst", _BURST, "latency", "100ms"]
            command = ["tc", "-n", name, "qdisc", "add", "dev", end, "root", "tbf", *shape]
            subprocess.run(command, check=True)
        yield
    finally:
        _remove(hosts)


def _remove(hosts: int) -> None:
    names = [["netns", "delete", name_of(host)] for host in range(hosts)]
    for name in [*names, ["link", "delete", _SWITCH]]:
        subprocess.run(["ip", *name], check=False, stderr=subprocess.DEVNULL)


def started(
    host: int, workers: Sequence[int], cluster: Sequence[str], program: Sequence[str]
) -> subprocess.Popen:
    """Starts a host's workers; a process that ends with them is returned."""
    lines = []
    for worker in workers:
        task = {"type": "worker", "index": worker}
        config = json.dumps({"cluster": {"worker": cluster}, "task": task})
        # The first one that fails ends the host.
        lines.append(f"{{ TF_CONFIG='{config}' \"$@\" || kill -USR1 $$; }} & ")
    script = f"trap 'exit 1' USR1; {''.join(lines)} wait"
    spaces = ["ip", "netns", "exec", name_of(host), "unshare", "--pid", "--fork", "--mount-proc"]
    return subprocess.Popen([*spaces, "--kill-child", "bash", "-c", script, "host", *program])


def main() -> int:
    hosts, each = int(sys.argv[1]), int(sys.argv[2])
    megabits, program = float(sys.argv[3]), sys.argv[4:]
    if os.geteuid() != 0:
        print("Namespaces with a network of their own are made by root. Received: another user.")
        return 2
    cluster = [f"{NETWORK}.{host + 1}:{PORT + n}" for host in range(hosts) for n in range(each)]
    with linked(hosts, megabits):
        running = [
            started(host, range(each * host, each * (host + 1)), cluster, program)
            for host in range(hosts)
        ]
        codes = [process.wait() for process in running]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
