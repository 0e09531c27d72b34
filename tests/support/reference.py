"""What one process computes, for all workers of a job to compare theirs with."""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tf_config import TFConfig

_SECONDS = 120.0
_numbers = itertools.count()


def of_one_process(compute: Callable[[], Any]) -> Any:
    """Returns what a function returns, which the first worker alone runs.

    All workers call it in the same order, in a directory that they see and nobody else uses. To
    train a model in one process on each of them would be most of the work of a test. With parameter
    servers each runs it: they find variables by their names, in which Keras counts models.

    Args:
      compute: returns numbers, arrays, and lists and dictionaries of them.

    >>> of_one_process(lambda: [1.0, 2.0])
    [1.0, 2.0]
    """
    number = next(_numbers)
    config = TFConfig.from_env()
    tasks = [] if config is None else [*config.cluster.training_tasks]
    if len(tasks) <= 1 or config.cluster.tasks("ps"):
        return compute()
    path = Path(f"of_one_process_{number}")
    if config.task == tasks[0]:
        aside = path.with_suffix(".part")
        aside.write_bytes(pickle.dumps(compute()))
        os.replace(aside, path)
    deadline = time.monotonic() + _SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"The first worker did not write {path} within {_SECONDS} s.")
        time.sleep(0.01)
    return pickle.loads(path.read_bytes())
