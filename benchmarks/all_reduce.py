"""Sums over workers: milliseconds that one takes, this package and its peers in turn.

    $ .venv/bin/python benchmarks/all_reduce.py --torch ~/torch/bin/python

Tensors of one size, and one set of 161 tensors with the sizes of ResNet-50's gradients, 102 MB.
PyTorch comes from a Python of its own, since it would bring its own libraries into this one; it is
left out where none is named. A copy of the same bytes in memory is what no sum falls below.
"""

from __future__ import annotations

from turns import PEERS, compare, on_workers, parser


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--torch", help="a Python that has PyTorch")
    given = arguments.parse_args()
    program = PEERS / "sums.py"
    short = ["--short"] if given.short else []
    systems = [
        on_workers(name, given.workers, program, system, *short)
        for name, system in (
            ("this package, shared memory", "shared_memory_strategy"),
            ("this package, Horovod", "horovod_strategy"),
            ("this package, TensorFlow's collectives", "tensorflow_strategy"),
            ("TensorFlow MultiWorkerMirrored, RING", "stock"),
            ("Horovod", "horovod"),
            ("a copy in memory, by as many processes at once", "copy"),
        )
    ]
    if given.torch:
        program = PEERS / "sums_torch.py"
        systems.append(on_workers("PyTorch, gloo", given.workers, given.torch, program, *short))
    compare(systems, given, less_is_better=True, unit="ms")


if __name__ == "__main__":
    main()
