"""Synchronous training of a small network: samples a second, this package and its peers in turn.

    $ .venv/bin/python benchmarks/mirrored.py --torch ~/torch/bin/python

Layers of 1024, 1024 and 10 units above 784 inputs, Adam, batches of 128 examples a worker.
What processes reach that exchange nothing is the ceiling of `fit`. One process of Keras with all
cores and the batches of all workers is what a user of one machine would run instead.
"""

from __future__ import annotations

from turns import CORES, PEERS, compare, in_one_process, on_workers, parser


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--torch", help="a Python that has PyTorch")
    given = arguments.parse_args()
    short = ["--short"] if given.short else []
    systems = [
        on_workers(name, given.workers, PEERS / "mlp.py", system, *short)
        for name, system in (
            ("this package, fit", "fit"),
            ('this package, fit, ReductionOptions(mode="reduce")', "fit_reduce"),
            ("this package, fit, over Horovod", "fit_horovod"),
            ("this package, custom loop", "loop"),
            ("as many processes at once that exchange nothing, fit", "alone"),
            ("TensorFlow MultiWorkerMirrored, RING, custom loop", "stock"),
            ("Horovod, tape in a custom loop", "horovod"),
        )
    ]
    name = "this package, one worker with all cores, fit"
    whole = [PEERS / "mlp.py", "fit", given.workers, *short]
    systems.append(on_workers(name, 1, *whole, threads=CORES))
    name = "one process of Keras, all cores, fit"
    systems.append(in_one_process(name, PEERS / "mlp.py", "keras", given.workers, *short))
    if given.torch:
        program = PEERS / "mlp_torch.py"
        systems.append(on_workers("PyTorch DDP, gloo", given.workers, given.torch, program, *short))
    compare(systems, given, less_is_better=False, unit="samples/s")


if __name__ == "__main__":
    main()
