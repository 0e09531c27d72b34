"""Trains the network of mirrored.py by PyTorch's own DDP; prints samples a second."""

from __future__ import annotations

import gc
import json
import sys
import time

import torch
import torch.distributed
from workers_torch import join, leave

ROWS = 128  # a step and worker
STEPS, WARM_UP = (10, 5) if "--short" in sys.argv else (300, 50)


def main() -> None:
    rank, workers = join()
    torch.manual_seed(rank)  # DDP takes the weights of the first; the rows differ
    layers = torch.nn.Sequential(
        torch.nn.Linear(784, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 10),
    )
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn([20, ROWS, 784]), torch.randint(0, 10, [20, ROWS])
    for number in range(WARM_UP + STEPS):
        if number == WARM_UP:
            gc.collect()
            start = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[number % 20]), y[number % 20])
        loss.backward()
        optimizer.step()
        loss.item()
    samples = STEPS * ROWS * workers / (time.perf_counter() - start)
    for parameter in model.parameters():
        of_all = [torch.empty_like(parameter) for _ in range(workers)]
        torch.distributed.all_gather(of_all, parameter.detach())
        if not all(torch.equal(other, of_all[0]) for other in of_all):
            raise RuntimeError("PyTorch's workers differ.")
    if rank == 0:
        print(f"RESULT {json.dumps({'samples/s': samples})}", flush=True)
    leave()


if __name__ == "__main__":
    main()
