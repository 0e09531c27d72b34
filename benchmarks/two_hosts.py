"""Sums over the workers of two hosts with a slow link between them; needs root.

    $ sudo .venv/bin/python benchmarks/two_hosts.py --megabits 1000

The hosts are namespaces of this machine, see peers/hosts.py: what is slow in them is the link,
as between machines, while all workers share this machine's cores.
"""

from __future__ import annotations

import os
import sys

from turns import PEERS, System, compare, parser


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--megabits", type=float, default=1000, help="of the link, a second")
    given = arguments.parse_args()
    if os.geteuid() != 0:
        print("Left out: two hosts are namespaces with networks of their own, made by root.")
        return
    hosts = [sys.executable, PEERS / "hosts.py", 2, given.workers, given.megabits]
    short = ["--short"] if given.short else []
    systems = [
        System(name, tuple(map(str, [*hosts, sys.executable, PEERS / "sums.py", system, *short])))
        for name, system in (
            ("this package", "auto_strategy"),
            ("this package, Horovod over all workers", "horovod_strategy"),
            ("Horovod", "horovod"),
        )
    ]
    print(f"{given.workers} workers on each of two hosts, {given.megabits:g} Mbit/s between them")
    compare(systems, given, less_is_better=True, unit="ms")


if __name__ == "__main__":
    main()
