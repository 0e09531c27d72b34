"""Training of a click model with a large table: samples a second, in turn with its peers.

    $ .venv/bin/python benchmarks/click_model.py --optimizer adam

The model of parameter_server.py, with `DistributedEmbedding` in place of Keras's own layer: on
workers alone, and with servers in each mode. Beside it one process, and what else there is for
several.
"""

from __future__ import annotations

import sys

from turns import PEERS, System, measured, on_workers, parser, table

MODES = ("async", "geo", "half_async", "sync")


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    arguments.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd", help="(sgd)")
    given = arguments.parse_args()
    short = ["--short"] if given.short else []
    fit = [PEERS / "ctr_fit.py", given.optimizer]
    ours = [*fit, "--distributed", *short]
    systems = [on_workers("this package, workers alone", given.workers, *ours)]
    systems += [
        on_workers(f"this package, servers, {mode}", given.workers, *ours, mode, ps=given.ps)
        for mode in MODES
    ]
    coordinator = [PEERS / "ctr_coordinator.py", given.optimizer, given.workers, given.ps]
    systems += [
        on_workers("this package, one process", 1, *ours),
        on_workers("Keras's Embedding, one process", 1, *fit, *short),
        on_workers(
            "Horovod, Keras's Embedding, custom loop", given.workers,
            PEERS / "ctr_horovod.py", given.optimizer, *short,
        ),
        System(
            "TensorFlow ParameterServer, coordinator, custom loop",
            tuple(map(str, [sys.executable, *coordinator, *short])),
        ),
    ]  # fmt: skip
    print(table(measured(systems, given.rounds, given.timeout), less_is_better=False))


if __name__ == "__main__":
    main()
