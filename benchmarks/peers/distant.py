"""Runs a program as two workers, on two hosts that are far from each other; needs root.

    distant.py MILLISECONDS PROGRAM [ARGUMENT ...]

Every frame between the hosts takes so long, each way. The hosts are namespaces of this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.two_hosts import TwoHosts
from tf_config import Address, ClusterSpec, Task, TFConfig

PORT, MTU = 23480, 60000


def main() -> int:
    delay, program = float(sys.argv[1]) / 1000, sys.argv[2:]
    with TwoHosts.made() as hosts:
        hosts.wire.delay = delay
        for name in hosts.names:
            # Python carries the frames: with fewer, larger ones, it delays them by little more.
            command = ["ip", "-n", name, "link", "set", name, "mtu", str(MTU)]
            subprocess.run(command, check=True)
        tasks = [Task("worker", number) for number in range(2)]
        cluster = ClusterSpec({t: Address(hosts.addresses[t.index], PORT) for t in tasks})
        running = [
            subprocess.Popen(
                [*hosts.on(task.index), *program],
                env={
                    **os.environ,
                    "KERAS_STRATEGIES_COMMUNICATION": "tensorflow",
                    "TF_CONFIG": TFConfig(cluster, task).to_json(),
                },
            )
            for task in tasks
        ]
        codes = [process.wait() for process in running]
        return int(any(codes))


sys.exit(main())
