"""What the page of metrics costs: the time of small steps with and without it, in turn.

    $ .venv/bin/python benchmarks/monitoring.py --rounds 5

Two workers train a small network by `fit`, so that a step takes little more than what is around it.
The page is fetched once a second, as no Prometheus does it so often.
"""

from __future__ import annotations

from turns import PEERS, measured, on_workers, parser, report

from tf_config.builder import free_ports


def main() -> None:
    given = parser(__doc__.splitlines()[0]).parse_args()
    (port,) = free_ports(1, "")
    program = [PEERS / "small_steps.py", *(["--short"] * given.short)]
    systems = [
        on_workers("this package, fit", given.workers, *program),
        on_workers(
            "this package, fit, --metrics-port", given.workers, *program, port,
            options=("--metrics-port", port),
        ),
    ]  # fmt: skip
    found = measured(systems, given.rounds, given.timeout)
    report(given, found, less_is_better=True, unit="ms")


if __name__ == "__main__":
    main()
