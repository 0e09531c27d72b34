"""PyTorch's process group, made from TF_CONFIG."""

from __future__ import annotations

import json
import os

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
