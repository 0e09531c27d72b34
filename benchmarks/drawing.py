"""How the pictures of the benchmarks look. The same numbers give the same file."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

mpl.use("svg")
mpl.rcParams.update({"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.size": 9})


def save(figure: plt.Figure, path: Path, **layout: object) -> None:
    """Writes a figure as an SVG file; `layout` goes to `Figure.tight_layout`."""
    figure.tight_layout(**layout)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
