"""What one step of `fit` consists of: the network of mirrored.py, by TensorFlow's profiler.

    $ .venv/bin/python benchmarks/step.py --before ../earlier docs/images/step.svg

With --before, workers of the package in another directory, an earlier commit's for instance,
over Horovod, are measured too. The picture shows the step of median length of each system: the
thread that runs the graph, and below it when values are exchanged.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from drawing import plt, save
from turns import PEERS, ROOT, measured, on_workers, parser

COLORS = {
    "forward pass": "#6ca965",
    "backward pass": "#1f6feb",
    "update": "#d29922",
    "exchange": "#cf222e",
    "other operations": "#9aa4af",
    "between two steps": "#444444",
}


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], compares=False)
    arguments.add_argument("picture", type=Path, help="an SVG file")
    arguments.add_argument("--before", type=Path, help="a directory with another version")
    given = arguments.parse_args()
    kinds = {"this package": ("auto", ROOT), "a process that exchanges nothing": ("alone", ROOT)}
    if given.before:
        kinds["before, over Horovod"] = ("horovod", given.before.resolve())
    program = PEERS / "step_trace.py"
    with tempfile.TemporaryDirectory() as directory:
        files = {name: Path(directory) / f"{kind}.json" for name, (kind, _) in kinds.items()}
        systems = [
            on_workers(
                name, given.workers, "--env", f"PYTHONPATH={package}", program, kind, files[name]
            )
            for name, (kind, package) in kinds.items()
        ]
        print(table(measured(systems, 1 if given.short else given.rounds, given.timeout)))
        draw({name: json.loads(path.read_text()) for name, path in files.items()}, given.picture)


def table(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Returns the medians of all rounds as a table of Markdown, a column for each system."""
    lines = [f"| ms | {' | '.join(found)} |", "|---" * (1 + len(found)) + "|"]
    for part in next(iter(found.values())):
        medians = [statistics.median(values.get(part, [0.0])) for values in found.values()]
        lines.append(f"| {part} | {' | '.join(f'{median:.1f}' for median in medians)} |")
    return "\n".join(lines)


def draw(steps: dict[str, list[tuple[str, float, float]]], path: Path) -> None:
    """Draws a step of each system, the latest one above."""
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.7 * len(steps)))
    for number, spans in enumerate(steps.values()):
        for part, begin, end in spans:
            place = (number + 0.05, 0.3) if part == "exchange" else (number - 0.3, 0.33)
            axes.broken_barh([(begin, end - begin)], place, facecolors=COLORS[part])
    axes.set_yticks(range(len(steps)), list(steps))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds")
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    figure.legend(handles, list(COLORS), ncols=len(COLORS), loc="upper center", frameon=False)
    save(figure, path, rect=(0, 0, 1, 0.92))


if __name__ == "__main__":
    main()
