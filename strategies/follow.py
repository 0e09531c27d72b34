"""A follower of a training: `python -m strategies.follow SERVED DELTAS --write VERSIONS`.

It applies the deltas that `strategies.export_delta` writes to a SavedModel of `strategies.export`,
in order and as they appear, and writes the SavedModel after them for TensorFlow Serving. A process
that serves the model itself uses `Follower` instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from strategies.live.follower import Follower

__all__ = ["Follower", "main"]

_POLL_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Follows a training; returns the exit code, 1 if a delta or SavedModel cannot be used.

    Args:
      arguments: arguments of the command; None is those of this process.
    """
    parsed = _parser().parse_args(arguments)
    try:
        follower = Follower(parsed.served, parsed.deltas)
        while True:
            numbers = follower.update()
            for number in numbers:
                print(f"applied {number:06d}", flush=True)
            if parsed.write is not None and (numbers or parsed.once):
                print(f"wrote {follower.save(parsed.write)}", flush=True)
            if parsed.once:
                return 0
            time.sleep(_POLL_SECONDS)
    except (OSError, ValueError) as error:
        print(f"strategies.follow: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m strategies.follow",
        description="Applies the deltas of a training to a SavedModel, in order.",
    )
    parser.add_argument("served", help="the SavedModel that strategies.export wrote")
    parser.add_argument("deltas", help="the directory that strategies.export_delta writes to")
    parser.add_argument(
        "--once", action="store_true", help="apply the deltas that are there, and end"
    )
    parser.add_argument(
        "--write",
        metavar="DIRECTORY",
        help="after deltas were applied, write the SavedModel to DIRECTORY/<number of the last>, "
        "which TensorFlow Serving serves as a new version",
    )
    return parser


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
