"""PyTorch's process group, made from TF_CONFIG."""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

import torch
import torch.distributed


def join() -> tuple[int, int]:
    """Joins the workers, one thread each; returns this one's number and how many there are."""
    torch.set_num_threads(1)
    config = json.loads(os.environ["TF_CONFIG"])
    workers, rank = config["cluster"]["worker"], config["task"]["index"]
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://{workers[0]}", rank=rank, world_size=len(workers)
    )
    return rank, len(workers)


def leave() -> NoReturn:
    """Leaves the workers, and ends this process with 0.

    A thread of Gloo's lets go of the last sum's tensors some time after the sum; if Python is
    finalizing by then, PyTorch 2.13 aborts the process ("terminate called without an active
    exception"). The threads outlive `destroy_process_group`, so Python is not finalized.
    """
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
