"""What the page of metrics costs: the time of steps with and without it, in turn.

    $ .venv/bin/python benchmarks/monitoring.py --rounds 5

Two workers train by `fit`: a small network, so that a step takes little more than what is around
it, and two larger ones. This process fetches the page once a second, which is more often than
Prometheus does by default.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import threading
import urllib.request
from collections.abc import Iterator

from turns import PEERS, compare, on_workers, parser

from tf_config.builder import free_ports

UNITS = {"A small network": 32, "A larger one": 768, "The largest": 2048}


def main() -> None:
    given = parser(__doc__.splitlines()[0]).parse_args()
    for name, units in UNITS.items():
        print(f"\n{name}, of {units} units:\n")
        show_cost(given, units)


def show_cost(given: argparse.Namespace, units: int) -> None:
    (port,) = free_ports(1, "")
    program = [PEERS / "small_steps.py", units, *(["--short"] * given.short)]
    metrics = ("--metrics-port", port)
    systems = [
        on_workers("this package, fit", given.workers, *program),
        on_workers(
            "this package, fit, --metrics-port", given.workers, *program, options=metrics
        ),
    ]  # fmt: skip
    with fetch_every_second(port) as pages:
        compare(systems, given, less_is_better=True, unit="ms")
    if not given.short and not any(b"keras_strategies_steps_total" in each for each in pages):
        raise RuntimeError(f"The page must have the number of steps. Received: {pages[-1:]}.")


@contextlib.contextmanager
def fetch_every_second(port: int) -> Iterator[list[bytes]]:
    """Fetches the page once a second while the block runs, if a program serves it."""
    pages: list[bytes] = []
    ended = threading.Event()

    def fetch() -> None:
        while not ended.wait(1.0):
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=1) as page,
            ):
                pages.append(page.read())

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        yield pages
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main()
