"""Several hosts, as far as shared memory is concerned, on one machine."""

from __future__ import annotations

import os

from strategies.collectives.shared_memory import host

WORKERS_A_HOST = "KERAS_STRATEGIES_TEST_WORKERS_A_HOST"


def pretend() -> None:
    """Lets only as many workers as the variable says take each other for neighbors, if it is set.

    Called before the strategy is created, on all workers.
    """
    if WORKERS_A_HOST not in os.environ:
        return
    from tf_config import TFConfig

    config = TFConfig.from_env()
    rank = config.cluster.training_tasks.index(config.task)
    number = rank // int(os.environ[WORKERS_A_HOST])
    host.host_identity = lambda: f"host {number}".encode()
