"""Training of a click model with a large table: samples a second, in turn with its peers.

    $ .venv/bin/python benchmarks/click_model.py --optimizer adam

The model of parameter_server.py, with `DistributedEmbedding` in place of Keras's own layer: on
workers alone, and with servers in each mode; asynchronous servers with Keras's own layer, too.
Beside it one process with one thread, one with all cores and the batches of all workers, which a
user of one machine would run instead, and what else there is for several. What processes reach that
exchange nothing is the ceiling of workers alone. Paddle comes from a Python of its own, and is left
out where none is named. It takes all steps in one call from Python; what comes closest in Keras are
many steps in one execution, which the modes that Paddle has are measured with as well.
"""

from __future__ import annotations

import argparse

from parameter_server import arguments, coordinator, fit, in_modes, one_process
from turns import PEERS, System, compare, in_one_process, on_workers

# Its sync mode crashed in 2.6.2. What --mkl-as-installed means is in peers/ctr_paddle.py.
PADDLE_MODES = (("async",), ("geo",), ("geo", "--mkl-as-installed"))
# Divides the steps of a run and of its warm-up.
STEPS_PER_EXECUTION = 50


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--paddle", help="a Python that has PaddlePaddle")
    given = parser.parse_args()
    ours = fit(given, "--distributed")
    horovod = [PEERS / "ctr_horovod.py", given.optimizer, *(["--short"] * given.short)]
    systems = [
        on_workers("this package, workers alone, fit", given.workers, *ours),
        *in_modes(given, "--distributed"),
        on_workers(
            "this package, geo, rows on servers, fit", given.workers, *ours, "geo",
            "--rows-on-servers", ps=given.ps,
        ),
        *(
            on_workers(
                f"this package, {mode}, {STEPS_PER_EXECUTION} steps an execution, fit",
                given.workers, *ours, mode, f"--steps-per-execution={STEPS_PER_EXECUTION}",
                ps=given.ps,
            )
            for mode in ("async", "geo")
        ),
        on_workers(
            "this package, async, Keras's Embedding, fit", given.workers, *fit(given), "async",
            ps=given.ps,
        ),
        on_workers("this package, one process, fit", 1, *ours),
        in_one_process(
            "this package, one process, all cores, fit", *ours, f"--batches={given.workers}"
        ),
        on_workers(
            "as many processes at once that exchange nothing, fit", given.workers, *ours, "--alone"
        ),
        one_process(given),
        on_workers("Horovod, Keras's Embedding, custom loop", given.workers, *horovod),
        coordinator(given),
        *(paddle(given, *mode) for mode in PADDLE_MODES if given.paddle),
    ]  # fmt: skip
    compare(systems, given, less_is_better=False, unit="samples/s")


def paddle(given: argparse.Namespace, mode: str, *options: str) -> System:
    """Returns Paddle Fleet's parameter servers in one of their modes."""
    program = [PEERS / "ctr_paddle.py", given.optimizer, mode, given.workers, given.ps, *options]
    command = [given.paddle, *program, *(["--short"] * given.short)]
    name = ", MKL as installed" if options else ""
    return System(f"Paddle Fleet, {mode}{name}", tuple(map(str, command)))


if __name__ == "__main__":
    main()
