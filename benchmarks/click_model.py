"""Training of a click model with a large table: samples a second, in turn with its peers.

    $ .venv/bin/python benchmarks/click_model.py --optimizer adam

The model of parameter_server.py, with `DistributedEmbedding` in place of Keras's own layer: on
workers alone, and with servers in each mode. Beside it one process, and what else there is for
several.
"""

from __future__ import annotations

from parameter_server import coordinator, fit, in_modes, one_process, parsed
from turns import PEERS, measured, on_workers, report


def main() -> None:
    given = parsed(__doc__)
    ours = fit(given, "--distributed")
    horovod = [PEERS / "ctr_horovod.py", given.optimizer, *(["--short"] * given.short)]
    systems = [
        on_workers("this package, workers alone, fit", given.workers, *ours),
        *in_modes(given, "--distributed"),
        on_workers("this package, one process, fit", 1, *ours),
        one_process(given),
        on_workers("Horovod, Keras's Embedding, custom loop", given.workers, *horovod),
        coordinator(given),
    ]
    found = measured(systems, given.rounds, given.timeout)
    report(given, found, less_is_better=False, unit="samples/s")


if __name__ == "__main__":
    main()
