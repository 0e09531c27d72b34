"""Runs the package on this machine's GPUs, and prints what came of it as a table.

    $ .venv/bin/python tools/gpu_check.py [--output gpu_check.json] [--all-columns]

It runs on one machine with one or more GPUs. Each row of the table is a
process of its own, or several, so that one that fails or hangs ends no other. What is trained on
GPUs is compared with the same on CPUs. The file has everything that was printed, for a report.
Without a GPU, all rows run on CPUs, and those that need GPUs are left out.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import rich
import rich.progress
import rich.table
from compatibility_columns import COLUMNS, KERAS, TABLES, cached_column
from rich.markup import escape

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tools" / "scripts" / "gpu_train.py"
KERNELS_PROGRAM = ROOT / "tests" / "distributed" / "gpu_kernels.py"
COMPATIBILITY = ROOT / "tools" / "compatibility.py"
LIMIT_SECONDS, LIMIT_OF_A_COLUMN = 180, 1800
KERNELS, SPEED = "kernels", "examples per second"
# One of one process, and one of several. Each takes minutes.
SOME_COLUMNS = ("mirrored", "multi-worker")
# Between a GPU and a CPU: other orders of sums, and other algorithms.
TOLERANCE, MIXED_TOLERANCE = 1e-3, 5e-2
PACKAGES = ("tensorflow", "keras", "tf_keras", "horovod", "nvidia-nccl-cu12")
READ_TENSORFLOW = """
import json, tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
build = tf.sysconfig.get_build_info()
print(json.dumps({
    "gpus": [str(each.get("device_name")) + ", compute capability "
             + ".".join(map(str, each.get("compute_capability", ()))) for each in details],
    "cuda": build.get("cuda_version"), "cudnn": build.get("cudnn_version"),
}))
"""
READ_HOROVOD = "import horovod.tensorflow as hvd; print('NCCL' if hvd.nccl_built() else 'no NCCL')"


@dataclass(frozen=True)
class Check:
    """A row of the table.

    Attributes:
      title: what it is called.
      words: the arguments of gpu_train.py.
      under: the arguments of `tf-config run`; none for one process.
      gpus: how many GPUs it needs to be of use.
      in_step: whether its numbers are those of CPUs; asynchronous modes have their own.
      has_twin: whether it is repeated on the GPUs, and must give the same bits.
    """

    title: str
    words: tuple[str, ...]
    under: tuple[str, ...] = ()
    gpus: int = 1
    in_step: bool = True
    has_twin: bool = False


@dataclass
class Outcome:
    """What came of a check.

    Attributes:
      title: the check's.
      verdict: "yes", "no" or "left out".
      note: why, or what was measured.
      seconds: how long it took.
      output: what failed processes printed.
    """

    title: str
    verdict: str
    note: str = ""
    seconds: float = 0.0
    output: str = field(default="", repr=False)


def checks(gpus: int) -> list[Check]:
    """Returns the checks for a number of GPUs; without GPUs, those for one, to run on CPUs."""
    count = "alone" if gpus == 1 else "two replicas"
    both = ("alone",) if gpus == 1 else ()
    workers = ("--workers", "2")
    # With one GPU, the second worker shares it: TensorFlow must not reserve all of its memory.
    if gpus > 1:
        workers += ("--gpus-per-worker", "1")
    served = (*workers, "--ps", "1")
    return [
        Check(f"MirroredStrategy, {count}", ("dense", "mirrored", *both)),
        Check(f"the same in tf_keras, {count}", ("dense", "mirrored", "tf_keras", *both)),
        Check("mixed_float16", ("dense", "mirrored", "mixed", *both)),
        Check("DistributedEmbedding", ("embedding", "mirrored", *both)),
        Check("CentralStorageStrategy", ("dense", "central", *both)),
        Check("two logical GPUs on one", ("dense", "mirrored", "logical")),
        Check('mode="reduce" by NCCL', ("dense", "mirrored", "reduce"), gpus=2),
        Check("prefetch to GPUs", ("dense", "mirrored", "prefetch"), gpus=2),
        Check(
            "enable_op_determinism, twice",
            ("dense", "mirrored", "deterministic", *both),
            has_twin=True,
        ),
        Check("two workers, NCCL", ("dense", "workers"), workers, gpus=2),
        Check("two workers, ring", ("dense", "workers", "ring"), workers),
        Check("two workers, embedding", ("embedding", "workers", "ring"), workers),
        *(
            Check(f"servers, {mode}", ("embedding", mode), served, in_step=mode == "sync")
            for mode in ("sync", "async", "half_async", "geo")
        ),
    ]


def train(
    words: tuple[str, ...], under: tuple[str, ...], on_gpus: bool
) -> tuple[list[dict[str, Any]], str]:
    """Returns what each worker found, and all output; no worker if a process failed.

    On CPUs, the options that mean GPUs are left out.
    """
    environ = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if not on_gpus:
        environ["CUDA_VISIBLE_DEVICES"] = "-1"
        words = tuple(word for word in words if word != "logical")
        if "--gpus-per-worker" in under:
            at = under.index("--gpus-per-worker")
            under = (*under[:at], *under[at + 2 :])
    launcher = ("-m", "tf_config", "run", *under) if under else ()
    done = execute([sys.executable, *launcher, str(PROGRAM), *words], LIMIT_SECONDS, **environ)
    lines = re.findall(r"^(?:\[worker \d\] )?(\{.*\})$", done.stdout, re.M)
    return [json.loads(line) for line in lines] if done.returncode == 0 else [], done.stdout


def run(check: Check, gpus: int) -> Outcome:
    """Returns the outcome of a check on this machine's GPUs."""
    if max(gpus, 1) < check.gpus or ("logical" in check.words and not gpus):
        note = f"GPUs required: {check.gpus}; here: {gpus}"
        return Outcome(check.title, "left out", note)
    start = time.monotonic()
    verdict, note, output = judge(check, gpus)
    return Outcome(check.title, verdict, note, time.monotonic() - start, output[-20000:])


def judge(check: Check, gpus: int) -> tuple[str, str, str]:
    """Returns a check's verdict, a note, and what a failed process printed."""
    found, output = train(check.words, check.under, on_gpus=True)
    if not found:
        return "no", last_line(output), output
    devices = {device.rpartition("/device:")[2] for each in found for device in each["replicas"]}
    on = f"on {', '.join(sorted(devices))}"
    if gpus and not all(device.startswith("GPU") for device in devices):
        return "no", f"ran {on}", output
    fetched = [device for each in found for device in each.get("fetched", ())]
    if gpus and not all(device.startswith("GPU") for device in fetched):
        return "no", f"{on}; batches on {', '.join(fetched)}", output
    if not all(math.isfinite(each["near"]) for each in found):
        return "no", f"{on}; predictions are not finite", output
    if check.has_twin:
        twins, output = train(check.words, check.under, on_gpus=True)
        is_same = [each["predicted"] for each in found] == [each["predicted"] for each in twins]
        return ("yes" if is_same else "no"), f"{on}; the same bits twice: {is_same}", output
    if not (gpus and check.in_step):
        return "yes", f"{on}; not compared", ""
    twins, output = train(check.words, check.under, on_gpus=False)
    if not twins:
        return "no", f"what it is compared with: {last_line(output)}", output
    difference = max(
        abs(mine["near"] - other["near"]) / abs(other["near"])
        for mine, other in zip(found, twins, strict=True)
    )
    limit = MIXED_TOLERANCE if "mixed" in check.words else TOLERANCE
    return ("yes" if difference <= limit else "no"), f"{on}; difference {difference:.1e}", ""


def kernels() -> Outcome:
    """Returns whether TensorFlow's wheel has a GPU kernel for all that runs on replicas."""
    start = time.monotonic()
    # Its replicas are logical CPUs, which tell what is on the host from what would be on a GPU.
    done = execute(
        [sys.executable, str(KERNELS_PROGRAM), "keras", "mirrored"],
        LIMIT_SECONDS,
        CUDA_VISIBLE_DEVICES="-1",
        PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    )
    passed = re.findall(r"^check_(\w+) passed$", done.stdout, re.M)
    names = ", ".join(passed).replace("_", " ") or "nothing"
    note = f"looked up in TensorFlow's wheel: {names}"
    if done.returncode:
        note = f"{note}; then {last_line(done.stdout)}"
    seconds = time.monotonic() - start
    verdict = "no" if done.returncode else "yes"
    return Outcome(KERNELS, verdict, note, seconds, done.stdout[-20000:])


def cells(title: str, table: str, strategy: str, keras: str, gpus: int, cache: Path) -> Outcome:
    """Returns what came of a column of a compatibility table.

    Args:
      title: of the row.
      table: which table, by its name in compatibility_columns.py.
      strategy: the column's, by its name in compatibility_columns.py.
      keras: which Keras.
      gpus: how many this machine has; without GPUs it runs on CPUs.
      cache: a directory that keeps the numbers of one process for the next column.
    """
    start = time.monotonic()
    done = execute(
        [
            *(sys.executable, str(COMPATIBILITY), "--strategy", strategy, "--keras", keras),
            *("--table", table, "--gpus", str(gpus), "--cache", str(cache)),
        ],
        LIMIT_OF_A_COLUMN,
    )
    seconds = time.monotonic() - start
    file = cached_column(cache, table, keras, strategy)
    if not file.exists():
        return Outcome(title, "no", last_line(done.stdout), seconds, done.stdout[-20000:])
    states = [each["state"] for each in json.loads(file.read_text()).values()]
    note = f"{states.count('ok')} of {len(states)} cells work"
    if done.returncode:
        note += ", and others do not that work on CPUs"
    verdict = "no" if done.returncode else "yes"
    return Outcome(title, verdict, note, seconds, done.stdout[-20000:])


def execute(command: list[str], limit: float, **environ: str) -> subprocess.CompletedProcess[str]:
    """Returns the output, errors among it, and the exit code of a command; 1 if it does not end."""
    try:
        return subprocess.run(
            command, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environ},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        text = output if isinstance(output, str) else output.decode(errors="replace")
        return subprocess.CompletedProcess(command, 1, f"{text}\nno end after {limit} s")


def last_line(output: str) -> str:
    """Returns the last line of an output that says something.

    >>> last_line("ValueError: no\\n\\n")
    'ValueError: no'
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def speed(gpus: int) -> Outcome:
    """Returns the speed of this package's MirroredStrategy and of TensorFlow's, in turn."""
    words = ("dense", "mirrored", "timed", *(("alone",) if gpus < 2 else ()))
    start = time.monotonic()
    figures: dict[str, list[float]] = {"ours": [], "stock": []}
    for name, extra in [("ours", ()), ("stock", ("stock",))] * 2:
        found, output = train((*words, *extra), (), on_gpus=True)
        if not found:
            note = f"{name}: {last_line(output)}"
            return Outcome(SPEED, "no", note, time.monotonic() - start, output)
        figures[name].append(found[0]["examples_per_second"])
    ours, stock = max(figures["ours"]), max(figures["stock"])
    note = f"{ours:,.0f}; stock MirroredStrategy {stock:,.0f} ({ours / stock:.2f} times)"
    return Outcome(SPEED, "yes", note, time.monotonic() - start)


def machine() -> dict[str, Any]:
    """Returns what the report says of this machine."""
    found: dict[str, Any] = {"platform": platform.platform(), "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    text = output_of(sys.executable, "-c", READ_TENSORFLOW)
    found |= json.loads(text) if text.startswith("{") else {"gpus": [], "error": text}
    found["nvidia-smi"] = output_of(
        "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
    )
    found["horovod built with"] = output_of(sys.executable, "-c", READ_HOROVOD)
    return found


def output_of(*command: str) -> str:
    """Returns a command's last line of output; "" if it cannot be run."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return last_line(done.stdout) if done.stdout.strip() else ""


def rows(gpus: int, is_whole: bool, cache: Path) -> dict[str, Callable[[], Outcome]]:
    """Returns what fills each row of the table, by the row's title.

    Args:
      gpus: how many this machine has.
      is_whole: whether all of our columns of the compatibility tables are measured, or two of each.
      cache: see `cells`.
    """
    found: dict[str, Callable[[], Outcome]] = {KERNELS: kernels}
    for check in checks(gpus):
        found[check.title] = functools.partial(run, check, gpus)
    keras_packages = list(KERAS) if is_whole else ["keras"]
    for table, keras, column in itertools.product(TABLES, keras_packages, COLUMNS):
        is_wanted = column.is_ours and (is_whole or column.name in SOME_COLUMNS)
        if is_wanted and table in column.tables:
            title = f"compatibility of {table}: {column.name}, {KERAS[keras]}"
            found[title] = functools.partial(cells, title, table, column.name, keras, gpus, cache)
    found[SPEED] = functools.partial(speed, gpus)
    return found


def main(arguments: list[str]) -> int:
    """Fills all rows; returns 1 if one of them failed."""
    options = parse(arguments)
    about = machine()
    gpus = len(about["gpus"])
    for name, value in about.items():
        rich.print(escape(f"{name}: {value}"))
    outcomes = []
    with tempfile.TemporaryDirectory() as cache, rich.progress.Progress(transient=True) as progress:
        wanted = {
            title: fill
            for title, fill in rows(gpus, options.all_columns, Path(cache)).items()
            if options.only in title
        }
        task = progress.add_task("", total=len(wanted))
        for title, fill in wanted.items():
            progress.update(task, description=title)
            outcomes.append(fill())
            progress.advance(task)
            line = f"{title}: {outcomes[-1].verdict} {outcomes[-1].note}"
            progress.console.print(escape(line))
    rich.print(table(outcomes))
    if not gpus:
        rich.print("TensorFlow sees no GPU: everything ran on CPUs, and compares nothing.")
    report = {"machine": about, "outcomes": [asdict(outcome) for outcome in outcomes]}
    options.output.write_text(json.dumps(report, indent=2))
    rich.print(f"Everything is in {options.output}. Please send it with a report.")
    return int(any(outcome.verdict == "no" for outcome in outcomes))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Returns the options; ends the process with exit code 2 if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--only", default="", help="the rows whose titles contain this")
    parser.add_argument(
        "--all-columns", action="store_true",
        help="the compatibility table under every strategy and both Keras, which takes longer",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if not options.output.absolute().parent.is_dir():
        parser.error(f"--output must be in a directory that exists. Received: {options.output}")
    titles = rows(2, options.all_columns, Path())
    if not any(options.only in title for title in titles):
        parser.error(f"--only must be a part of a title. Received: {options.only!r}")
    return options


def table(outcomes: list[Outcome]) -> rich.table.Table:
    """Returns the outcomes as a table for the terminal."""
    found = rich.table.Table("check", "works", "note", "s")
    for each in outcomes:
        found.add_row(each.title, each.verdict, escape(each.note), f"{each.seconds:.0f}")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
