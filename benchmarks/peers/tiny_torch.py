"""Trains the synthetic model "Tiny" by PyTorch; prints milliseconds and memory.

tiny_torch.py bags|torchrec SCALE

`bags` is `EmbeddingBag(sparse=True)` in one process; `torchrec` places the tables on the workers of
TF_CONFIG as its planner sees fit (by rows it does not, on CPUs), on gloo, with the optimizer's step
in the backward pass.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
import torch.distributed
from workers_torch import join


def layers(inputs: int) -> torch.nn.Sequential:
    """Returns the layers above the tables."""
    made: list[torch.nn.Module] = []
    for units in tiny.LAYERS:
        made += [torch.nn.Linear(inputs, units), torch.nn.ReLU()]
        inputs = units
    return torch.nn.Sequential(*made, torch.nn.Linear(inputs, 1))


def bags(scale: int) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], float]:
    """Returns a step in one process."""
    made = tiny.tables(scale)
    tables = torch.nn.ModuleList(
        torch.nn.EmbeddingBag(table.rows, table.width, mode="sum", sparse=True) for table in made
    )
    top = layers(sum(table.width * len(table.columns) for table in made) + tiny.NUMBERS)
    update = torch.optim.Adagrad([*tables.parameters(), *top.parameters()], tiny.LEARNING_RATE)

    def step(ids: torch.Tensor, numbers: torch.Tensor, labels: torch.Tensor) -> float:
        update.zero_grad()
        rows = [
            layer(ids[:, columns].contiguous())
            for layer, table in zip(tables, made, strict=True)
            for columns in table.columns
        ]
        logits = top(torch.cat([*rows, numbers], 1))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        update.step()
        return loss.item()

    return step


def sharded(scale: int) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], float]:
    """Returns a step of one of several workers."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    made = tiny.tables(scale)
    keys = [
        (f"{table.name}_{number}", columns)
        for table in made
        for number, columns in enumerate(table.columns)
    ]
    collection = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=table.name,
                num_embeddings=table.rows,
                embedding_dim=table.width,
                feature_names=[f"{table.name}_{number}" for number in range(len(table.columns))],
            )
            for table in made
        ],
        device=torch.device("meta"),
    )
    apply_optimizer_in_backward(
        torch.optim.Adagrad, collection.parameters(), {"lr": tiny.LEARNING_RATE}
    )
    workers = torch.distributed.get_world_size()
    sharders: list[Any] = [EmbeddingBagCollectionSharder()]
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=workers, compute_device="cpu", local_world_size=workers),
        batch_size=tiny.BATCH // workers,
    )
    plan = planner.collective_plan(collection, sharders, torch.distributed.GroupMember.WORLD)
    tables = DistributedModelParallel(
        collection, device=torch.device("cpu"), plan=plan, sharders=sharders
    )
    top = torch.nn.parallel.DistributedDataParallel(
        layers(sum(table.width * len(table.columns) for table in made) + tiny.NUMBERS)
    )
    update = torch.optim.Adagrad(top.parameters(), tiny.LEARNING_RATE)
    lengths = torch.cat(
        [
            torch.full([tiny.BATCH // workers], columns.stop - columns.start, dtype=torch.int64)
            for _, columns in keys
        ]
    )

    def step(ids: torch.Tensor, numbers: torch.Tensor, labels: torch.Tensor) -> float:
        update.zero_grad()
        values = torch.cat([ids[:, columns].reshape(-1) for _, columns in keys])
        found = tables(KeyedJaggedTensor([key for key, _ in keys], values, lengths=lengths))
        logits = top(torch.cat([found.wait().values(), numbers], 1))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        update.step()
        return loss.item()

    return step


def status(name: str) -> float:
    """Returns a number of this process's memory, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def main() -> None:
    name, scale = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    rank, workers = join() if "TF_CONFIG" in os.environ else (0, 1)
    ids, numbers, labels = map(torch.from_numpy, tiny.batches(scale, tiny.BATCH // workers))
    step = bags(scale) if name == "bags" else sharded(scale)
    ends = []
    for number in range(tiny.WARM_UP + tiny.STEPS):
        place = number % tiny.BATCHES
        step(ids[place], numbers[place], labels[place])
        ends.append(time.perf_counter())
    seconds = statistics.median(np.diff(ends)[tiny.WARM_UP - 1 :])
    found = {
        "ms a step": 1000 * seconds,
        "MiB a process": status("VmRSS"),
        "MiB at most": status("VmHWM"),
    }
    if rank == 0:
        print("RESULT", json.dumps(found), flush=True)
    if workers > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
