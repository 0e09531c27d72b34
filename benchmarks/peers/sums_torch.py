"""Sums tensors over the workers of TF_CONFIG by PyTorch's gloo; prints milliseconds."""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed
from sizes import RESNET, SHORT, SIZES, WARM_UP, resnet50, times
from workers_torch import join, leave


def milliseconds(numbers: list[int], count: int) -> float:
    """Returns the median time of a sum of tensors of so many numbers each, all on their way."""
    taken = []
    for _ in range(WARM_UP + count):
        tensors = [torch.ones(size) for size in numbers]
        start = time.perf_counter()
        waiting = [torch.distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in waiting:
            work.wait()
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken[WARM_UP:])


def main() -> None:
    rank, _ = join()
    short = "--short" in sys.argv
    found = {
        what: milliseconds([size // 4], times(size, short))
        for what, size in (SHORT if short else SIZES).items()
    }
    found[RESNET] = milliseconds(resnet50(), times(102 << 20, short))
    if rank == 0:
        print(f"RESULT {json.dumps(found)}", flush=True)
    leave()


if __name__ == "__main__":
    main()
