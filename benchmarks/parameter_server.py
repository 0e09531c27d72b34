"""Training by parameter servers: samples a second, this package and its peers in turn.

    $ .venv/bin/python benchmarks/parameter_server.py --optimizer sgd

The click model of examples/ctr_dnn.py: 26 ids a row in one table of 1,000,001 embeddings of 10
numbers, 13 integers, three layers of 400 units; batches of 512 rows a worker.
"""

from __future__ import annotations

import sys

from turns import PEERS, System, measured, on_workers, parser, table

MODES = ("async", "half_async", "geo", "sync")


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    arguments.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd", help="(sgd)")
    given = arguments.parse_args()
    short = ["--short"] if given.short else []
    fit = [PEERS / "ctr_fit.py", given.optimizer]
    coordinator = [PEERS / "ctr_coordinator.py", given.optimizer, given.workers, given.ps]
    systems = [
        on_workers(f"this package, {mode}, fit", given.workers, *fit, mode, *short, ps=given.ps)
        for mode in MODES
    ]
    systems += [
        System(name, tuple(map(str, [sys.executable, *program, *short])))
        for name, program in (
            ("TensorFlow ParameterServer, coordinator, custom loop", coordinator),
            ("one process, fit", fit),
        )
    ]
    print(table(measured(systems, given.rounds, given.timeout), less_is_better=False))


if __name__ == "__main__":
    main()
