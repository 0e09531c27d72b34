"""What oneDNN changes: milliseconds of a step and memory of small models, without it and with it.

    $ .venv/bin/python benchmarks/onednn.py
    $ .venv/bin/python benchmarks/onednn.py --isa AVX2

TensorFlow turns it on by itself where the processor has instructions for neural networks. With
--isa it is held to the instructions of older ones, for which TensorFlow leaves it off.
"""

from __future__ import annotations

import sys

from turns import PEERS, System, compare, parser


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--isa", help="what oneDNN may use at most: AVX2, AVX512_CORE, ...")
    given = arguments.parse_args()
    limit = [f"ONEDNN_MAX_CPU_ISA={given.isa}"] if given.isa else []
    program = [sys.executable, str(PEERS / "layers_step.py"), *["--short"][: given.short]]
    systems = [
        System(name, ("env", *limit, f"TF_ENABLE_ONEDNN_OPTS={value}", *program))
        for name, value in (("without oneDNN", 0), ("with oneDNN", 1))
    ]
    compare(systems, given, less_is_better=True, unit="ms")


if __name__ == "__main__":
    main()
