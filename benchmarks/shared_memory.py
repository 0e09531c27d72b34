"""Sums in shared memory: milliseconds if each worker adds up everything, and if each adds one part.

    $ .venv/bin/python benchmarks/shared_memory.py

Without TensorFlow and its functions, only the copies and additions of one sum, by the number of
workers and the size of the vector. The workers are forks of this process, and take both ways in
turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import statistics
import time

import numpy as np

from strategies.collectives.shared_memory import transfers
from strategies.collectives.shared_memory.host import Host
from strategies.collectives.shared_memory.memory import OwnMemory, PeerMemory

_WAYS = {"everything": 1 << 60, "one part": 0}
_MEGABYTES = (0.0625, 0.25, 1, 4, 16)
_MEGABYTES_A_TURN = 64


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--workers", type=int, nargs="+", default=[2, 3, 4, 8])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--short", action="store_true", help="only see whether it runs")
    given = arguments.parse_args()
    sizes = (1,) if given.short else _MEGABYTES
    print("| workers | MB | everything, ms | one part, ms | ratio |\n|---|---|---|---|---|")
    for workers in given.workers:
        for megabytes in sizes:
            whole, part = measured(workers, megabytes, 1 if given.short else given.rounds)
            print(
                f"| {workers} | {megabytes} | {whole:.3g} | {part:.3g} | {part / whole:.2f} |",
                flush=True,
            )


def measured(workers: int, megabytes: float, rounds: int) -> list[float]:
    """Returns the median milliseconds of one sum in each way, as the first worker sees them."""
    context = multiprocessing.get_context("fork")
    memories = [OwnMemory() for _ in range(workers)]
    receiver, sender = context.Pipe(duplex=False)
    processes = [
        context.Process(target=work, args=(rank, memories, os.getpid(), megabytes, rounds, sender))
        for rank in range(workers)
    ]
    for process in processes:
        process.start()
    sender.close()
    found = receiver.recv()
    for process in processes:
        process.join()
    for memory in memories:
        os.close(memory.number)
    return found


def work(
    rank: int,
    memories: list[OwnMemory],
    owner: int,
    megabytes: float,
    rounds: int,
    sender: multiprocessing.connection.Connection,
) -> None:
    """Adds up vectors with the other workers, and checks the sums; the first worker reports."""
    size = len(memories)
    peers = {
        other: PeerMemory(owner, memories[other].number) for other in range(size) if other != rank
    }
    names = [f"worker {number}" for number in range(size)]
    channel = Host(rank, names, [0], memories[rank], peers, rank == 0).new_channel()
    vector = np.full(int(megabytes * 2**18), rank, np.float32)
    count = max(2, int(_MEGABYTES_A_TURN / megabytes / size))
    seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
    for _ in range(rounds):
        for way, direct_bytes in _WAYS.items():
            transfers._DIRECT_BYTES = direct_bytes
            transfers.sum_vectors(channel, [vector])
            start = time.perf_counter()
            for _ in range(count):
                (total,) = transfers.sum_vectors(channel, [vector])
            seconds[way].append((time.perf_counter() - start) / count)
            if (total != size * (size - 1) // 2).any():
                raise RuntimeError(f"A sum over {size} workers is wrong, {way}.")
    if rank == 0:
        sender.send([1000 * statistics.median(each) for each in seconds.values()])


if __name__ == "__main__":
    main()
