"""What saving costs: the longest gap between two steps, and samples a second, in turn.

    $ .venv/bin/python benchmarks/checkpoint.py

Two workers train 3 million rows of width 16 and a dense network of 2 million parameters with Adam.
`callbacks.Checkpoint` saves every 50 steps, in the background, in the foreground, or not at all.
"""

from __future__ import annotations

import tempfile

from turns import PEERS, compare, on_workers, parser


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    given = arguments.parse_args()
    short = ["--short"] if given.short else []
    with tempfile.TemporaryDirectory() as directory:
        systems = [
            on_workers(f"this package, {name}", given.workers, PEERS / "saving.py", mode, directory,
                       *short)
            for name, mode in (
                ("saving in the background", "background"),
                ("saving in the foreground", "foreground"),
                ("not saving", "none"),
            )
        ]  # fmt: skip
        compare(systems, given, less_is_better=True, unit="ms")


if __name__ == "__main__":
    main()
