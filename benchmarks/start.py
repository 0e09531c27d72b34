"""The start of a job: seconds from the command to the end of the first step, in turn.

    $ .venv/bin/python benchmarks/start.py

The network is that of mirrored.py. Horovod's program imports nothing of this package.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from turns import PEERS, System, compare, on_workers, parser


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    given = arguments.parse_args()
    program = PEERS / "first_step.py"
    horovodrun = [Path(sys.executable).with_name("horovodrun"), "--gloo", "-np", given.workers]
    systems = [
        on_workers("this package, tf-config run, fit", given.workers, program, "fit"),
        on_workers("this package, tf-config run, custom loop", given.workers, program, "loop"),
        System(
            "Horovod, horovodrun, custom loop",
            tuple(map(str, [*horovodrun, sys.executable, program, "horovod"])),
        ),
    ]
    compare([timed(system) for system in systems], given, less_is_better=True, unit="s")


def timed(system: System) -> System:
    """Returns the system with the time at which its command starts in its environment."""
    clock = ("sh", "-c", 'STARTED_AT=$(date +%s.%N) exec "$@"', "sh")
    return replace(system, command=(*clock, *system.command))


if __name__ == "__main__":
    main()
