"""Draws what benchmarks have written with `--json`: medians as bars, and the range of the rounds.

$ .venv/bin/python benchmarks/plot.py build/benchmarks/mirrored.json docs/images/mirrored.svg
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path

from drawing import plt, save

COLUMNS = 2  # panels side by side: with more, a page shows them too small to read


def main() -> None:
    if len(sys.argv) != 3:
        print("plot.py FILE.json PICTURE.svg", file=sys.stderr)
        sys.exit(2)
    source, target = map(Path, sys.argv[1:])
    draw(json.loads(source.read_text()), target)


def draw(content: dict, path: Path) -> None:
    """Draws a file's content, one panel for each thing that was measured."""
    found = content["found"]
    systems = list(found)
    # Of what has units of its own, that which all are compared by.
    panels = [what for what in found[systems[0]] if what.startswith(content["unit"])]
    panels = panels or list(found[systems[0]])
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (5 + 2.2 * columns, (0.6 + 0.34 * len(systems)) * rows)
    figure, every = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for unused in every.flat[len(panels) :]:
        unused.remove()
    for number, (panel, what) in enumerate(zip(every.flat, panels, strict=False)):
        rounds = [found[system].get(what, [float("nan")]) for system in systems]
        medians = [statistics.median(values) for values in rounds]
        below = [median - min(values) for median, values in zip(medians, rounds, strict=True)]
        above = [max(values) - median for median, values in zip(medians, rounds, strict=True)]
        colors = ["#1f6feb" if system.startswith("this package") else "#9aa4af" for system in found]
        bars = panel.barh(systems, medians, color=colors, xerr=[below, above], ecolor="#444444")
        labels = [f"{median:.3g}" if median < 100 else f"{median:,.0f}" for median in medians]
        panel.bar_label(bars, labels, padding=3, fontsize=7)
        panel.margins(x=0.2)
        panel.locator_params(axis="x", nbins=5)
        panel.xaxis.set_major_formatter("{x:,.10g}")
        panel.invert_yaxis()
        panel.set_title("" if what == content["unit"] else what)
        panel.set_xlabel(content["unit"] + (", less is better" * content["less_is_better"]))
        panel.set_xlim(left=0)
        if number % columns:
            panel.set_yticklabels([])
    save(figure, path)


if __name__ == "__main__":
    main()
