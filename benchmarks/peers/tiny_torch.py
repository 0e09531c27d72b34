"""Trains the synthetic model "Tiny" by PyTorch's sparse `EmbeddingBag`, in one process.

tiny_torch.py SCALE
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tiny
import torch


def layers(inputs: int) -> torch.nn.Sequential:
    """Returns the layers above the tables."""
    made: list[torch.nn.Module] = []
    for units in tiny.LAYERS:
        made += [torch.nn.Linear(inputs, units), torch.nn.ReLU()]
        inputs = units
    return torch.nn.Sequential(*made, torch.nn.Linear(inputs, 1))


def step_of(scale: int) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], float]:
    """Returns a step."""
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


def status(name: str) -> float:
    """Returns a number of this process's memory, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def main() -> None:
    scale = int(sys.argv[1])
    torch.set_num_threads(1)
    ids, numbers, labels = map(torch.from_numpy, tiny.batches(scale, tiny.BATCH))
    step = step_of(scale)
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
    print(f"RESULT {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
