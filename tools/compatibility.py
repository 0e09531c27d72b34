"""Measures what works under which strategy, and prints it as a page of Markdown.

    $ .venv/bin/python tools/compatibility.py > docs/compatibility.md
    $ .venv/bin/python tools/compatibility.py --gpus 2 > on_gpus.md

Each cell of tests/distributed/cells is run for real: on as many workers as the strategy has in
compatibility_columns.py, under Keras 3 and under tf_keras, and once without a strategy for the
numbers to compare with. A cell whose worker fails, hangs or is killed fails; the others are run in
a new process. The exit code is 1 if one of ours fails that is not expected to.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from compatibility_columns import (
    ALONE,
    EXPECTED,
    KERAS,
    STRATEGIES,
    TABLES,
    Strategy,
    cached_column,
)

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tests" / "distributed" / "compatibility.py"
LONGEST_NOTE = 300
# On GPUs, kernels add in another order, and in any.
GPU_TOLERANCE = 1e-3
# How errors of graphs and layers begin before they come to the point.
PREAMBLES = (
    "Graph execution error",
    "Detected at node",
    "<stack",
    "Exception encountered",
    "File",
    "2 root error(s) found.",
)
# Colours, and files of the machine that it was measured on.
NOISE = (r"\x1b\[\d*m", r" \(defined @ [^)]*\)")
PACKAGES = ("tensorflow", "keras", "tf_keras", "horovod")
INTRODUCTION = """\
# Compatibility

What works under which strategy. Every cell was run, on {devices}, by
`python tools/compatibility.py`, which prints this page; what is in the cells stands in
`tests/distributed/cells`.

{versions}

*yes*: it runs; the loss is a number and falls; all workers and replicas have the same logs,
predictions and weights, to the bit; and these are one process's at the same global batch, to
{tolerance} (mixed precision and rows of 16 bits: to 0.05; Dropout and BatchNormalization have
random numbers and statistics of their own on each replica, a full table evicts by shard, and
Keras 3 clips each replica's gradient, as under stock strategies). In `async`, `half_async` and
`geo`, whose workers do not take each step together, only the loss and what was saved are checked.
*wrong*: it runs, and something of this does not hold. *fails*: with the error in the note. *hangs*:
no sign of life. *alone*: it works in a process that has run no other cell before. *missing*: this
Keras has no such feature."""


@dataclass(frozen=True)
class Result:
    """What came of a cell.

    Attributes:
      state: `ok`; `fails` with an error; `wrong` numbers; `hangs`; `alone`: works in a process
        that has run no other cell; or `missing` from this Keras.
      note: why it is not ok.
    """

    state: str
    note: str = ""


class Group:
    """The processes that run cells of one column, started together.

    Args:
      strategy: the column's.
      keras: which Keras.
      table: which table.
      skipped: the cells that are not to run.
      options: `patience`, the seconds without a sign of life after which they hang, and `gpus`, how
        many GPUs there are for them; on CPUs if there are none.
    """

    def __init__(
        self,
        strategy: Strategy,
        keras: str,
        table: str,
        skipped: list[str],
        options: argparse.Namespace,
    ):
        self._options = options
        with tempfile.TemporaryDirectory() as directory:
            records = Path(directory) / "records"
            records.touch()
            self.code = self._run(strategy, keras, table, skipped, records)
            self.records = [json.loads(line) for line in records.read_text().splitlines()]

    def _run(
        self, strategy: Strategy, keras: str, table: str, skipped: list[str], records: Path
    ) -> int | None:
        """Returns the exit code, None if they hang."""
        command = [
            *(sys.executable, "-m", "tf_config", "run", "--workers", strategy.workers),
            *(("--ps", strategy.servers) if strategy.servers else ()),
            *words_of_gpus(strategy, self._options.gpus),
            *(SCRIPT, strategy.make, "--options", json.dumps(strategy.options)),
            *("--keras", keras, "--cpus", strategy.cpus, "--records", records, "--table", table),
            *("--skip", *skipped),
        ]
        environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        environ |= {"TF_USE_LEGACY_KERAS": str(int(keras == "tf_keras")), **strategy.environ}
        # Two workers may share a GPU: TensorFlow must not reserve all of its memory for one.
        environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        if not self._options.gpus:
            environ["CUDA_VISIBLE_DEVICES"] = "-1"
        path = [str(ROOT), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        with open(records.with_suffix(".log"), "w+") as log:
            process = subprocess.Popen(
                list(map(str, command)), env=environ, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                return self._wait(process, records, self._options.patience)
            finally:
                process.terminate()
                process.wait()
                log.seek(0)
                self.log = log.read()

    def _wait(self, process: subprocess.Popen, records: Path, patience: float) -> int | None:
        size, since = 0, time.monotonic()
        while process.poll() is None:
            if records.stat().st_size > size:
                size, since = records.stat().st_size, time.monotonic()
            if time.monotonic() - since > patience:
                return None
            time.sleep(0.1)
        return process.returncode

    @property
    def cells(self) -> dict[str, list[dict[str, Any]]]:
        """The records of each cell that was begun, in their order."""
        found: dict[str, list[dict[str, Any]]] = {}
        for record in self.records:
            if record["cell"] is not None:
                found.setdefault(record["cell"], []).append(record)
        return found

    def failure(self) -> tuple[str | None, Result]:
        """Returns the cell that ended it, and how."""
        cells = self.cells
        for name, records in cells.items():
            for record in records:
                if record["state"] == "fails":
                    wrong = record["error"].startswith("AssertionError: ")
                    note = record["error"].removeprefix("AssertionError: ")
                    return name, Result("wrong" if wrong else "fails", shortened(note))
        last = next(reversed(cells), None)
        if self.code is None:
            return last, Result("hangs")
        return last, Result("fails", f"the process ends with exit code {self.code}")


def words_of_gpus(strategy: Strategy, gpus: int) -> tuple[str, ...]:
    """Returns the options of `tf-config run` that give each worker GPUs of its own.

    There are none if the GPUs are too few for it: workers then share all of them.

    >>> words_of_gpus(STRATEGIES["multi-worker"], gpus=2)
    ('--gpus-per-worker', '1')
    >>> words_of_gpus(STRATEGIES["multi-worker-2x2"], gpus=2)
    ()
    """
    replicas = strategy.options.get("num_replicas", 1)
    if strategy.workers == 1 or gpus < strategy.workers * replicas:
        return ()
    return ("--gpus-per-worker", str(replicas))


def column(
    strategy: Strategy,
    keras: str,
    table: str,
    expected: dict[str, Any],
    options: argparse.Namespace,
) -> tuple[dict[str, Result], dict[str, Any]]:
    """Returns what came of each cell, and the numbers.

    Args:
      strategy: the column's.
      keras: which Keras.
      table: which table.
      expected: the numbers of one process, by cell.
      options: see `Group`.
    """
    results: dict[str, Result] = {}
    facts: dict[str, Any] = {}
    again: tuple[str, Result] | None = None
    while True:
        group = Group(strategy, keras, table, list(results), options)
        for name, records in group.cells.items():
            ended = [record for record in records if record["state"] in ("ok", "missing")]
            if len(ended) == strategy.workers:
                least = GPU_TOLERANCE if options.gpus else 0.0
                compared = ended if strategy.is_in_step else ended[:1]
                of_one = expected.get(name) if strategy.is_in_step else None
                results[name] = judged(compared, of_one, least)
                facts[name] = ended[0].get("facts")
                if again is not None and again[0] == name and results[name].state == "ok":
                    results[name] = Result("alone", again[1].note or again[1].state)
        if group.code == 0:
            return results, facts
        name, failure = group.failure()
        if name is None:
            raise RuntimeError(f"{strategy.title} does not start: {failure.note}\n{group.log}")
        if next(iter(group.cells)) == name or is_expected(keras, strategy.name, name, failure):
            results[name] = failure
            print(f"{strategy.title}, {keras}, {name}: {failure.state}", file=sys.stderr)
        else:  # with nothing before it, it may work
            again = name, failure


def judged(records: list[dict[str, Any]], expected: Any, least: float = 0.0) -> Result:
    """Returns whether the workers' numbers are the same, and those of one process.

    Args:
      records: of a cell, one from each worker.
      expected: the numbers of one process.
      least: how much these may differ in any case.
    """
    first = records[0]
    if first["state"] == "missing":
        return Result("missing", first["error"])
    for other in records[1:]:
        found = difference(other["facts"], first["facts"], 0)
        if found:
            return Result("wrong", f"the workers' {found[0]} differ: {found[1]} and {found[2]}")
    if expected is not None and first["tolerance"] is not None:
        found = difference(first["facts"], expected, max(first["tolerance"], least))
        if found:
            return Result("wrong", f"{found[0]}: {found[1]} in place of one process's {found[2]}")
    return Result("ok")


def difference(found: Any, expected: Any, tolerance: float) -> tuple[str, Any, Any] | None:
    """Returns the first difference: where it is, and both values.

    >>> difference({"loss": [1.0, 2.0]}, {"loss": [1.0, 2.5]}, 0.1)
    ('loss 1', 2.0, 2.5)
    """
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        pairs = [(name, found[name], expected[name]) for name in found]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(str(n), *both) for n, both in enumerate(zip(found, expected, strict=True))]
    else:
        numbers = isinstance(found, (int, float)) and isinstance(expected, (int, float))
        near = numbers and abs(found - expected) <= tolerance * (1 + abs(expected))
        return None if near or found == expected else ("", found, expected)
    for name, one, other in pairs:
        below = difference(one, other, tolerance)
        if below:
            return f"{name} {below[0]}".strip(), *below[1:]
    return None


def shortened(text: str) -> str:
    """Returns the line of an error that says what went wrong, and its type.

    >>> shortened("ValueError: Exception encountered when calling Cond.call().\\n\\nno kernel")
    'ValueError: no kernel'
    """
    for noise in NOISE:
        text = re.sub(noise, "", text)
    kind, _, rest = text.partition(": ")
    lines = [line.strip() for line in (rest or kind).splitlines()]
    telling = [line for line in lines if line and not line.startswith(PREAMBLES)]
    line = (telling or lines)[0]
    if line == "in user code:":  # tf_keras quotes the code that leads there
        return shortened(telling[-1])
    if line.endswith("{"):  # a value is quoted, over many lines
        line += f" ... {telling[-1]}"
    line = f"{kind}: {line}" if rest else line
    return line if len(line) <= LONGEST_NOTE else line[: LONGEST_NOTE - 3] + "..."


def main() -> int:
    """Measures, prints, and returns the exit code."""
    options = parsed()
    measured: dict[tuple[str, str], dict[str, dict[str, Result]]] = {}
    unexpected = []
    for table_name, keras in itertools.product(options.table, options.keras):
        expected = numbers_of_one_process(keras, table_name, options)
        for name in options.strategy:
            if table_name not in STRATEGIES[name].tables:
                continue
            started = time.monotonic()
            results = results_of(STRATEGIES[name], keras, table_name, expected, options)
            measured.setdefault((table_name, keras), {})[name] = results
            bad = surprises(keras, name, results, set(expected))
            unexpected += bad
            seconds = time.monotonic() - started
            print(f"{name}, {keras}: {seconds:.0f} s", *bad, sep="\n", file=sys.stderr)
    print(page(measured, options.gpus))
    return 1 if unexpected else 0


def parsed() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--keras", nargs="+", choices=KERAS, default=list(KERAS))
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--patience", type=float, default=90, help="seconds until a cell hangs")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of this machine to run on")
    parser.add_argument("--cache", type=Path, help="a directory that keeps what is measured")
    return parser.parse_args()


def numbers_of_one_process(
    keras: str, table_name: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Returns what every cell gives without a strategy, or gave in an earlier run."""
    file = options.cache and options.cache / f"{table_name}-{keras}.json"
    if file and file.exists():
        return json.loads(file.read_text())
    results, facts = column(ALONE, keras, table_name, {}, options)
    failed = {name: one for name, one in results.items() if one.state not in ("ok", "missing")}
    if failed:
        raise RuntimeError(f"In one process every cell works. Received: {failed}. Mend the cell.")
    if file:
        file.write_text(json.dumps(facts))
    return facts


def results_of(
    strategy: Strategy,
    keras: str,
    table_name: str,
    expected: dict[str, Any],
    options: argparse.Namespace,
) -> dict[str, Result]:
    """Returns what came of each cell, now or in an earlier run."""
    file = options.cache and cached_column(options.cache, table_name, keras, strategy.name)
    if file and file.exists():
        return {name: Result(**one) for name, one in json.loads(file.read_text()).items()}
    results, _ = column(strategy, keras, table_name, expected, options)
    if file:
        file.write_text(json.dumps({name: asdict(one) for name, one in results.items()}))
    return results


def surprises(keras: str, strategy: str, results: dict[str, Result], cells: set[str]) -> list[str]:
    """Returns what is not as expected of one of our strategies, a line each."""
    if not STRATEGIES[strategy].is_ours:
        return []
    found = [f"{cell}: not run" for cell in cells - results.keys()]
    for cell, result in results.items():
        if (keras, strategy, cell) in EXPECTED:
            if not is_expected(keras, strategy, cell, result):
                found.append(f"{cell}: expected to fail, as EXPECTED says, but {result}")
        elif result.state not in ("ok", "missing"):
            found.append(": ".join(filter(None, [cell, result.state, result.note])))
    return found


def is_expected(keras: str, strategy: str, cell: str, result: Result) -> bool:
    """Whether a cell of ours fails as EXPECTED says."""
    why = EXPECTED.get((keras, strategy, cell))
    return why is not None and result.state == "fails" and why in result.note


def page(measured: dict[tuple[str, str], dict[str, dict[str, Result]]], gpus: int = 0) -> str:
    """Returns the tables of both Keras as Markdown, with the errors below."""
    notes: dict[str, int] = {}
    tables = [
        f"## {TABLES[name]}{KERAS[keras]}\n\n{table(columns, notes)}"
        for (name, keras), columns in measured.items()
    ]
    lines = [f"{number}. {literal(note)}" for note, number in notes.items()]
    below = ["## Notes\n\n" + "\n".join(lines)] if lines else []
    introduction = INTRODUCTION.format(
        versions=versions(),
        devices="GPUs" if gpus else "CPUs",
        tolerance=f"{GPU_TOLERANCE:g}" if gpus else "1e-5",
    )
    return "\n\n".join([introduction, *tables, *below])


def table(columns: dict[str, dict[str, Result]], notes: dict[str, int]) -> str:
    """Returns a table; what it has to say more is added to the notes."""
    cells = list(dict.fromkeys(cell for results in columns.values() for cell in results))
    rows = [["", *(STRATEGIES[name].title for name in columns)], ["---"] * (len(columns) + 1)]
    for cell in cells:
        row = [cell]
        for results in columns.values():
            result = results[cell]
            text = "yes" if result.state == "ok" else result.state
            if result.note:
                text += f" [{notes.setdefault(result.note, len(notes) + 1)}]"
            row.append(text)
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def literal(text: str) -> str:
    """Returns text as Markdown that shows it as it is."""
    return "`" + text.replace("`", "'") + "`"


def versions() -> str:
    """Returns what was measured with."""
    found = [f"{name} {metadata.version(name)}" for name in PACKAGES]
    return ", ".join([f"Python {platform.python_version()}", *found])


if __name__ == "__main__":
    sys.exit(main())
