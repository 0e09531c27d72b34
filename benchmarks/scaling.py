"""A model of a training step against workers, hosts and bandwidth; needs root.

    $ sudo .venv/bin/python benchmarks/scaling.py --json build/scaling.json docs/images/scaling.svg

Sums of several sizes are measured on one to four workers, of this machine and of hosts that are
namespaces of it, and a model with a latency and a time per byte for each way is fitted to a part of
them. Checked are those that it was not fitted to, and steps of the network of mirrored.py. What it
says of more workers is a prediction, and drawn as such.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls
from turns import PEERS, System, measured, parser

sys.path.insert(0, str(PEERS))

from sizes import RESNET, SIZES

CORES = len(os.sched_getaffinity(0))
BYTES = {**SIZES, RESNET: 102 << 20}
ROWS, GRADIENTS = 128, 4 * (784 * 1024 + 1024 + 1024 * 1024 + 1024 + 10 * 1024 + 10)  # of mlp.py


class Place(NamedTuple):
    """Where workers are: so many hosts, workers on each, and megabits a second between them."""

    hosts: int
    workers: int
    megabits: float = 1000

    @property
    def size(self) -> int:
        """How many workers there are."""
        return self.hosts * self.workers

    def __str__(self) -> str:
        link = f", {self.megabits:g} Mbit/s" if self.hosts > 1 else ""
        return f"{self.hosts} x {self.workers}{link}"


FITTED = (Place(1, 2), Place(1, 4), Place(2, 1), Place(4, 1), Place(2, 1, 400), Place(2, 2))
CHECKED = (Place(1, 3), Place(3, 1), Place(2, 2, 400))
STEPS = (Place(1, 2), Place(2, 1), Place(2, 1, 400), Place(2, 2), Place(4, 1))


def terms(place: Place, length: float, cores: int) -> list[float]:
    """Returns what the model multiplies by its coefficients, for a sum of so many bytes.

    Within a host: a latency, and the bytes that its workers read and write, each of them those of
    all. Between hosts, in a ring: a latency, one for each of its steps, the bytes that are copied
    to and from the network, and the seconds on the link.
    """
    crowded = max(1.0, place.workers / cores)
    inside = [crowded, length * place.workers * crowded] if place.workers > 1 else [0.0, 0.0]
    if place.hosts == 1:
        return [*inside, 0.0, 0.0, 0.0, 0.0]
    steps = 2 * (place.hosts - 1)
    on_link = steps / place.hosts * length * 8 / (place.megabits * 1e6)
    return [*inside, 1.0, steps, length, on_link]


def fitted(points: Sequence[tuple[Place, float, float]]) -> np.ndarray:
    """Returns the coefficients for points of (place, bytes, seconds), by least relative squares."""
    seconds = np.array([taken for _, _, taken in points])
    rows = [terms(place, length, _shared(place)) for place, length, _ in points]
    coefficients, _ = nnls(np.array(rows) / seconds[:, None], np.ones(len(points)))
    return coefficients


def _shared(place: Place) -> int:
    # All hosts are on the cores of this machine.
    return max(1, CORES // place.hosts)


def sum_seconds(coefficients: np.ndarray, place: Place, length: float, cores: int) -> float:
    """Returns what the model says of a sum."""
    return float(np.dot(coefficients, terms(place, length, cores)))


def system(place: Place, name: str, *program: object) -> System:
    command = [sys.executable, PEERS / "hosts.py", place.hosts, place.workers, place.megabits]
    return System(f"{name} {place}", tuple(map(str, [*command, sys.executable, *program])))


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], compares=False)
    arguments.add_argument("--json", type=Path, help="a file for all numbers")
    arguments.add_argument("picture", type=Path, nargs="?", help="an SVG of the prediction")
    given = arguments.parse_args()
    if os.geteuid() != 0:
        print("Left out: hosts are namespaces with networks of their own, made by root.")
        return
    content = measure(given)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(content, indent=1))
    report(content, given.picture)


def measure(given: argparse.Namespace) -> dict:
    """Measures sums and steps; returns the medians, in seconds."""
    short = ["--short"] if given.short else []
    fitted_to, checked, steps = (
        places[: 1 if given.short else None] for places in (FITTED, CHECKED, STEPS)
    )
    sums = [system(p, "sums", PEERS / "sums.py", "auto_strategy", *short) for p in fitted_to]
    sums += [system(p, "sums", PEERS / "sums.py", "auto_strategy", *short) for p in checked]
    trained = [system(p, "steps", PEERS / "mlp.py", "fit", *short) for p in steps]
    alone = [system(p, "alone", PEERS / "mlp.py", "alone", *short) for p in steps]
    found = measured([*sums, *trained, *alone], given.rounds, given.timeout)
    medians = {
        name: {what: float(np.median(values)) for what, values in values_of.items()}
        for name, values_of in found.items()
    }

    def points(places: Sequence[Place]) -> list[tuple[Place, float, float]]:
        return [
            (place, BYTES[what], milliseconds / 1000)
            for place in places
            for what, milliseconds in medians[f"sums {place}"].items()
        ]

    def seconds(name: str, place: Place) -> float:
        return ROWS * place.size / medians[f"{name} {place}"]["samples/s"]

    return {
        "fitted": points(fitted_to),
        "checked": points(checked),
        "steps": [(place, seconds("alone", place), seconds("steps", place)) for place in steps],
    }


def report(content: dict, picture: Path | None) -> None:
    """Prints the model and how far it is off; draws what it predicts."""
    points = {
        kind: [(Place(*place), length, taken) for place, length, taken in content[kind]]
        for kind in ("fitted", "checked")
    }
    model = fitted(points["fitted"])
    print("Coefficients:", ", ".join(f"{value:.3g}" for value in model))
    print("| sum | measured, ms | model, ms | model / measured |\n|---|---|---|---|")
    for kind, every in points.items():
        for place, length, taken in every:
            said = sum_seconds(model, place, length, _shared(place))
            what = f"{place}, {length / 1e6:.3g} MB, {kind}"
            print(f"| {what} | {1e3 * taken:.2f} | {1e3 * said:.2f} | {said / taken:.2f} |")
    print("| step | measured, ms | no overlap, ms | full overlap, ms |\n|---|---|---|---|")
    for values, alone, taken in content["steps"]:
        place = Place(*values)
        exchange = sum_seconds(model, place, GRADIENTS, _shared(place))
        bounds = alone + exchange, max(alone, exchange)
        numbers = " | ".join(f"{1e3 * number:.1f}" for number in (taken, *bounds))
        print(f"| {place} | {numbers} |")
    if picture is not None:
        draw(model, picture)


def draw(model: np.ndarray, path: Path) -> None:
    """Draws the efficiency that the model predicts for ResNet-50's gradients."""
    from drawing import plt, save

    compute, length, each = 0.5, BYTES[RESNET], 8
    numbers = [2**n for n in range(11)]
    figure, panel = plt.subplots(figsize=(6.4, 3.6))
    for gigabits in (1, 10, 100):
        low, high = [], []
        for number in numbers:
            place = Place(max(1, number // each), min(number, each), 1000 * gigabits)
            # On machines with a core or more for each worker.
            exchange = sum_seconds(model, place, length, each) if number > 1 else 0.0
            low.append(compute / (compute + exchange))
            high.append(compute / max(compute, exchange))
        (line,) = panel.plot(numbers, low, label=f"{gigabits} Gbit/s, no overlap")
        panel.plot(
            numbers, high, "--", color=line.get_color(), label=f"{gigabits} Gbit/s, full overlap"
        )
    panel.set_xscale("log", base=2)
    panel.set_ylim(0, 1.05)
    panel.set_xlabel(f"workers, {each} per host")
    panel.set_ylabel("fraction of linear scaling")
    title = f"Prediction: steps of {compute:g} s that sum {length / 1e6:.0f} MB"
    panel.set_title(title)
    panel.legend(fontsize=7)
    save(figure, path)


if __name__ == "__main__":
    main()
