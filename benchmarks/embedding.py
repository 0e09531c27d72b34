"""The distributed embedding: what a step costs, this package and its peers in turn.

    $ .venv/bin/python benchmarks/embedding.py rows --optimizers SGD Adam
    $ .venv/bin/python benchmarks/embedding.py tiny --scale 10 --torch ~/torch/bin/python
    $ .venv/bin/python benchmarks/embedding.py tiny --scale 1 --workers 4 --alone
    $ .venv/bin/python benchmarks/embedding.py prefetch --delays 0 5
    $ sudo .venv/bin/python benchmarks/embedding.py lockstep --delays 0 5
    $ .venv/bin/python benchmarks/embedding.py placement --workers 2

`rows` times a step of 4096 ids in a table of ten thousand rows and in one of ten million. `tiny` is
NVIDIA's synthetic model of that name, 55 tables and 85 ids an example, 4096 examples a step of all
workers together, with Adagrad; `--scale 10` divides its 70 million rows by ten. `prefetch` times a
step of 1024 examples with 26 ids each, in mode "half_async", with and without `prefetch_rows`;
every byte takes `--delays` milliseconds to the parameter server and as many back. `lockstep` does
the same with two workers that train in step on two hosts, `--delays` milliseconds from each other;
the hosts are namespaces of this machine, which root makes. `placement` times small tables that are
sharded and such that every worker has a copy of.
"""

from __future__ import annotations

import argparse
import os
import sys

from turns import PEERS, System, compare, on_workers, parser

WHAT = ("rows", "tiny", "prefetch", "lockstep", "placement")
# Rows of a table, examples a step, and tables.
SMALL_TABLES = ((100, 256, 1), (1000, 4096, 1), (1000, 1024, 8))
OPTIMIZERS = ("SGD", "Adagrad", "Adam")


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("what", nargs="*", help=f"{', '.join(WHAT)} (all)")
    arguments.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS)
    arguments.add_argument("--large", type=float, default=1e7, help="rows of the large table (1e7)")
    arguments.add_argument("--delays", nargs="+", default=["0", "2", "10"], help="ms (0 2 10)")
    arguments.add_argument("--scale", type=int, default=10, help="divides Tiny's rows (10)")
    arguments.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    arguments.add_argument("--alone", action="store_true", help="without peers")
    arguments.add_argument("--torch", help="a Python that has PyTorch")
    arguments.add_argument("--tfra", help="a Python that has TensorFlow Recommenders Addons")
    given = arguments.parse_args()
    if given.short:
        given.large, given.scale = min(given.large, 1e5), 1000
    if unknown := set(given.what) - set(WHAT):
        arguments.error(f"what is measured is of {WHAT}. Received: {sorted(unknown)}.")
    tables_of = {"rows": len(given.optimizers), "tiny": 1}
    if given.json and sum(tables_of.get(what, 2) for what in given.what or WHAT) != 1:
        arguments.error("--json takes one table: tiny, or rows with one optimizer.")
    if not given.what or "rows" in given.what:
        for optimizer in given.optimizers:
            print(f"\n{optimizer}:\n")
            show(of_rows(given, optimizer), given)
    if not given.what or "tiny" in given.what:
        print(f"\nTiny, its rows divided by {given.scale}:\n")
        show(of_tiny(given), given)
    if not given.what or "prefetch" in given.what:
        for delay in given.delays:
            print(f"\nA parameter server {delay} ms away:\n")
            show(of_prefetch(given, delay), given)
    if not given.what or "lockstep" in given.what:
        if os.geteuid() == 0:
            for delay in given.delays:
                print(f"\nTwo workers {delay} ms from each other:\n")
                show(of_lockstep(given, delay), given)
        else:
            print("Left out: two hosts are namespaces with networks of their own, made by root.")
    if not given.what or "placement" in given.what:
        for rows, batch, tables in SMALL_TABLES:
            print(f"\nTables of {rows} rows: {tables}, with {batch} examples a step:\n")
            show(of_placement(given, rows, batch, tables), given)


def show(systems: list[System], given: argparse.Namespace) -> None:
    """Measures systems and prints a table."""
    compare(systems, given, less_is_better=True, unit="ms")


def of_rows(given: argparse.Namespace, optimizer: str) -> list[System]:
    """Returns the systems whose step is timed in a small table and in a large one."""
    rest = [optimizer, str(given.large), *_short(given)]
    program = str(PEERS / "rows_step.py")
    names = {"ours": "this package, Keras 3"}
    if not given.alone:
        names |= {
            "ours_loop": "this package, custom loop",
            "keras": "Keras 3's own Embedding",
            "tf_keras": "tf_keras's own Embedding",
        }
    # As `tf-config run` starts it: arrays stand on huge pages.
    systems = [on_workers(names.pop("ours"), 1, program, "ours", *rest)]
    systems += [on_workers(text, 1, program, name, *rest) for name, text in names.items()]
    if given.torch:
        systems.append(on_workers("PyTorch, sparse", 1, given.torch, program, "torch", *rest))
    if given.tfra:
        for name, text in {"tfra": "TFRA, tf_keras", "tfra_loop": "TFRA, custom loop"}.items():
            systems.append(on_workers(text, 1, given.tfra, program, name, *rest))
    return systems


def of_tiny(given: argparse.Namespace) -> list[System]:
    """Returns the systems that train the synthetic model; of one worker, those of one process."""
    rest = [given.scale, *_short(given)]
    keras = PEERS / "tiny_keras.py"
    one = on_workers("this package, one process", 1, keras, "ours", *rest)
    many = f"{given.workers} workers"
    ours = on_workers(f"this package, {many}", given.workers, keras, "ours", *rest)
    if given.alone:
        return [ours if given.workers > 1 else one]
    systems = [one]
    if given.workers > 1:
        systems = [
            ours,
            one,
            on_workers(
                f"this package, parameter servers, async, {many}", given.workers, keras, "ours",
                given.scale, "async", *_short(given), ps=given.ps,
            ),
            on_workers(
                f"TensorFlow MultiWorkerMirrored, tf_keras, {many}", given.workers, keras,
                "stock", *rest,
            ),
            on_workers(f"Horovod, tf_keras, {many}", given.workers, keras, "horovod", *rest),
        ]  # fmt: skip
    systems += [
        on_workers("Keras 3's own Embedding, one process", 1, keras, "keras", *rest),
        on_workers("tf_keras's own Embedding, one process", 1, keras, "tf_keras", *rest),
    ]
    if given.torch:
        name = "PyTorch EmbeddingBag, one process"
        systems.append(on_workers(name, 1, given.torch, PEERS / "tiny_torch.py", *rest))
    return systems


def of_prefetch(given: argparse.Namespace, delay: str) -> list[System]:
    """Returns the ways to get rows from a server that is so far away."""
    program = PEERS / "prefetch_step.py"
    names = {
        "prefetched": "this package, with prefetch_rows",
        "plain": "this package, without prefetch_rows",
    }
    return [
        on_workers(text, 1, program, way, delay, *_short(given), ps=1)
        for way, text in names.items()
    ]


def of_lockstep(given: argparse.Namespace, delay: str) -> list[System]:
    """Returns the ways to exchange rows between two hosts that are so far from each other."""
    distant = [sys.executable, PEERS / "distant.py", delay]
    step = [sys.executable, PEERS / "prefetch_step.py"]
    names = {
        "prefetched": "this package, with prefetch_rows",
        "plain": "this package, without prefetch_rows",
    }
    return [
        System(text, tuple(map(str, [*distant, *step, way, *_short(given)])))
        for way, text in names.items()
    ]


def of_placement(given: argparse.Namespace, *sizes: int) -> list[System]:
    """Returns a model of small tables, with both placements."""
    program = PEERS / "placement_step.py"
    name = f"this package, {given.workers} workers"
    return [on_workers(name, given.workers, program, *sizes, *_short(given))]


def _short(given: argparse.Namespace) -> list[str]:
    return ["--short"] if given.short else []


if __name__ == "__main__":
    main()
