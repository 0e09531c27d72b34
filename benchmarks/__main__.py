"""Runs benchmarks on an idle machine, and draws what they measured.

    $ make benchmarks CASE="mirrored rows"
    $ .venv/bin/python -m benchmarks mirrored --rounds 5

Options after the cases go to each of them. With --only nothing is drawn, for a picture has all
systems. Peers that cannot share an environment with this package get one of their own, in
.venv-peers; one that cannot be installed is left out.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = ROOT / "build" / "benchmarks"
PICTURES = ROOT / "docs" / "images"
ENVIRONMENTS = ROOT / ".venv-peers"

PACKAGES = {
    "torch": ["torch==2.13.0", "numpy"],
    "tfra": [
        "tensorflow-recommenders-addons==0.8.1",
        "tensorflow==2.16.2",
        "tf_keras==2.16.0",
    ],
    "paddle": ["paddlepaddle==2.6.2", "protobuf<5", "numpy<2", "setuptools"],
}


@dataclass(frozen=True)
class Case:
    """A benchmark: a program of this folder, and what it is called with.

    Attributes:
      program: the file.
      arguments: what it always gets.
      peers: the names of environments of their own, of those in `PACKAGES`.
      is_drawn: whether its numbers become a picture of bars.
      is_default: whether it runs where no case is named.
    """

    program: str
    arguments: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    is_drawn: bool = True
    is_default: bool = True


CASES = {
    "all_reduce": Case("all_reduce.py", peers=("torch",)),
    "two_hosts": Case("two_hosts.py"),
    "mirrored": Case("mirrored.py", peers=("torch",)),
    "click_model": Case("click_model.py", peers=("paddle",)),
    "rows": Case("embedding.py", ("rows", "--optimizers", "Adam"), peers=("torch", "tfra")),
    "tiny": Case("embedding.py", ("tiny", "--workers", "1"), peers=("torch",)),
    "start": Case("start.py"),
    "click_model_adam": Case(
        "click_model.py", ("--optimizer", "adam"), peers=("paddle",), is_default=False
    ),
    "parameter_server": Case("parameter_server.py", is_default=False),
    "embedding": Case("embedding.py", peers=("torch", "tfra"), is_drawn=False, is_default=False),
    "onednn": Case("onednn.py", is_drawn=False, is_default=False),
    "scaling": Case(
        "scaling.py",
        ("--rounds", "2", "--json", "build/scaling.json", "docs/images/scaling.svg"),
        is_drawn=False,
        is_default=False,
    ),
    "checkpoint": Case("checkpoint.py", is_drawn=False, is_default=False),
    "shared_memory": Case("shared_memory.py", is_drawn=False, is_default=False),
    "monitoring": Case("monitoring.py", is_drawn=False, is_default=False),
    "step": Case("step.py", ("build/step.svg",), is_drawn=False, is_default=False),
}


def main() -> int:
    arguments = sys.argv[1:]
    count = next((n for n, each in enumerate(arguments) if each.startswith("-")), len(arguments))
    names, options = arguments[:count], arguments[count:]
    if unknown := [name for name in names if name not in CASES]:
        print(f"A case must be one of {', '.join(CASES)}. Received: {' '.join(unknown)}.")
        return 2
    names = names or [name for name, case in CASES.items() if case.is_default]
    failed = [name for name in names if not run(name, CASES[name], options)]
    if failed:
        print(f"These cases failed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def run(name: str, case: Case, options: list[str]) -> bool:
    """Runs a case and draws its numbers; returns whether it succeeded."""
    folder = Path(__file__).resolve().parent
    command = [sys.executable, str(folder / case.program), *case.arguments, *options]
    for peer in case.peers:
        if (python := python_of(peer)) is not None:
            command += [f"--{peer}", str(python)]
    numbers = NUMBERS / f"{name}.json"
    is_drawn = case.is_drawn and not any(option.startswith("--only") for option in options)
    if is_drawn:
        command += ["--json", str(numbers)]
    if subprocess.run(command, cwd=ROOT).returncode:
        return False
    # Where a case is left out, as two hosts are without root, there are no numbers.
    if not is_drawn or not numbers.exists():
        return True
    draw = [sys.executable, str(folder / "plot.py"), str(numbers), str(PICTURES / f"{name}.svg")]
    return not subprocess.run(draw, cwd=ROOT).returncode


def python_of(peer: str) -> Path | None:
    """Returns the Python of a peer's environment, which is made first; None if it cannot be."""
    folder = ENVIRONMENTS / peer
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        venv.create(folder, symlinks=True, with_pip=True)  # as `python -m venv` does
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*install, *PACKAGES[peer]]).returncode:
            print(f"Left out of the benchmarks: {peer}, which cannot be installed here.")
            return None
        ready.touch()
    return python


if __name__ == "__main__":
    sys.exit(main())
