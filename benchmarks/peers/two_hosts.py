"""Runs a program as workers of two hosts, which are namespaces of this machine; needs root.

    $ python benchmarks/peers/two_hosts.py WORKERS_A_HOST MEGABITS PROGRAM [ARGUMENT ...]

Each host has a network and process numbers of its own, so its workers share memory with each other
alone. The link between the hosts carries so many megabits a second in each direction.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

HOSTS = {"ks-bench-a": "10.213.0.1", "ks-bench-b": "10.213.0.2"}
PORT = 23450
_BURST = "256kb"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextlib.contextmanager
def linked(megabits: float) -> Iterator[None]:
    """Makes the hosts' networks, and removes them."""
    first, second = HOSTS
    try:
        for name in HOSTS:
            ip("netns", "add", name)
        ends = {first: "ks-end-a", second: "ks-end-b"}
        ip("link", "add", ends[first], "type", "veth", "peer", "name", ends[second])
        for name, address in HOSTS.items():
            ip("link", "set", ends[name], "netns", name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", ends[name])
            ip("-n", name, "link", "set", ends[name], "up")
            ip("-n", name, "link", "set", "lo", "up")
            shape = ["rate", f"{megabits}mbit", "burst", _BURST, "latency", "100ms"]
            command = ["tc", "-n", name, "qdisc", "add", "dev", ends[name], "root", "tbf", *shape]
            subprocess.run(command, check=True)
        yield
    finally:
        for name in HOSTS:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def started(name: str, workers: Sequence[str], program: Sequence[str]) -> subprocess.Popen:
    """Starts a host's workers; a process that ends with them is returned."""
    cluster = [f"{host}:{PORT + n}" for host in HOSTS.values() for n in range(len(workers))]
    lines = []
    for worker in workers:
        task = {"type": "worker", "index": int(worker)}
        config = json.dumps({"cluster": {"worker": cluster}, "task": task})
        lines.append(f"TF_CONFIG='{config}' \"$@\" & ")
    # The first one that fails ends the host.
    script = "".join(lines) + "for _ in " + " ".join(workers) + "; do wait -n || exit 1; done"
    spaces = ["ip", "netns", "exec", name, "unshare", "--pid", "--fork", "--mount-proc"]
    return subprocess.Popen([*spaces, "--kill-child", "bash", "-c", script, name, *program])


def main() -> int:
    count, megabits, program = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    if os.geteuid() != 0:
        print("Namespaces with a network of their own are made by root. Received: another user.")
        return 2
    with linked(megabits):
        hosts = [
            started(name, [str(count * number + n) for n in range(count)], program)
            for number, name in enumerate(HOSTS)
        ]
        codes = [host.wait() for host in hosts]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
