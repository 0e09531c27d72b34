"""The benchmarks run in turn, and their table says what was measured."""

import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Loads a file of the benchmarks as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)  # they import each other as programs do

    def load(path):
        spec = importlib.util.spec_from_file_location(f"benchmarks_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        # A dataclass looks for its module there.
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    yield load
    for name in [name for name in sys.modules if name.startswith("benchmarks_")]:
        del sys.modules[name]


@pytest.fixture
def turns(load):
    return load(BENCHMARKS / "turns.py")


def test_systems_take_turns_in_alternate_order(turns, tmp_path):
    log = tmp_path / "log"

    def system(name, value):
        program = (
            f"file = open({str(log)!r}, 'a'); file.write({name!r}); "
            f"print('[worker 0] RESULT {{\"ms\": {value}}}')"
        )
        return turns.System(name, (sys.executable, "-c", program))

    found = turns.measured([system("A", 2), system("B", 3)], rounds=3, timeout=30)
    assert log.read_text() == "ABBAAB"
    assert found == {"A": {"ms": [2, 2, 2]}, "B": {"ms": [3, 3, 3]}}


@pytest.mark.parametrize("program", ["print('nothing')", "print('RESULT {}'); exit(3)"])
def test_a_failure_of_this_package_is_shown(turns, program):
    system = turns.System("this package", (sys.executable, "-c", program))
    with pytest.raises(RuntimeError, match="Received: [01], and [03] from .*"):
        turns.measured([system], rounds=1, timeout=30)


def test_a_peer_that_fails_in_one_round_has_no_numbers(turns, tmp_path, capsys):
    once = tmp_path / "once"
    fails = (
        f"import os; os.path.exists({str(once)!r}) and exit(3); open({str(once)!r}, 'w'); "
        "print('RESULT {\"ms\": 1}')"
    )
    programs = {"this package": "print('RESULT {\"ms\": 2}')", "a peer": fails}
    systems = [turns.System(name, (sys.executable, "-c", text)) for name, text in programs.items()]
    found = turns.measured(systems, rounds=3, timeout=30)
    assert found == {"this package": {"ms": [2, 2, 2]}, "a peer": {}}
    error = capsys.readouterr().err
    assert "Left out: a peer. A system prints 1 results" in error and "and 3 from" in error
    assert error.count("of 3: a peer") == 2
    assert "| a peer | - |" in turns.table(found, less_is_better=True)


def test_an_earlier_version_runs_the_same_program_in_turn(turns, tmp_path, capsys, monkeypatch):
    for name, text in {"now": "fit = new = 2", "earlier": "fit = 4"}.items():
        (tmp_path / name / "benchmarks" / "peers").mkdir(parents=True)
        (tmp_path / name / "measured_package.py").write_text(text)
    monkeypatch.setattr(turns, "ROOT", tmp_path / "now")
    monkeypatch.setattr(turns, "PEERS", tmp_path / "now" / "benchmarks" / "peers")
    ours = "from measured_package import {0}; print('RESULT {{\"ms\": %s}}' % {0})"
    systems = [
        turns.System(name, (sys.executable, "-c", program), root=turns.ROOT)
        for name, program in {
            "this package": ours.format("fit"),
            "this package, new": ours.format("new"),
            "a peer": "print('RESULT {\"ms\": 6}')",
        }.items()
    ]
    command = ["--before", str(tmp_path / "earlier"), "--rounds", "2"]
    turns.compare(systems, turns.parser("").parse_args(command), less_is_better=True, unit="ms")
    output, error = capsys.readouterr()
    assert output.splitlines()[2:] == [
        "| this package | 2.00 |",
        "| this package, new | 2.00 (1.00 x; 1.00 to 1.00) |",
        "| a peer | 6.00 (3.00 x; 3.00 to 3.00) |",
        "",
        "| system | ms |",
        "|---|---|",
        "| this package | 2.00 |",
        "| this package, before | 4.00 (2.00 x; 2.00 to 2.00) |",
    ]
    assert "Left out: this package, new, before." in error and "a peer, before" not in error
    with pytest.raises(SystemExit, match="none of the systems is of this package"):
        turns.compare(systems[2:], turns.parser("").parse_args(command), True, unit="ms")


def test_only_systems_that_are_named_are_measured(turns, capsys):
    systems = [
        turns.System(name, (sys.executable, "-c", "print('RESULT {\"ms\": 1}')"))
        for name in ("this package", "a peer", "another peer")
    ]

    def measure(*options):
        given = turns.parser("").parse_args(["--rounds", "1", *options])
        turns.compare(systems, given, less_is_better=True, unit="ms")
        return [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()[2:]]

    assert measure() == ["| this package", "| a peer", "| another peer"]
    assert measure("--only", "this", "--only", "another") == ["| this package", "| another peer"]
    with pytest.raises(SystemExit, match="Received: none; the systems are: this package; a peer;"):
        measure("--only", "none")


def test_what_is_no_checkout_cannot_be_compared_with(turns, tmp_path, capsys):
    with pytest.raises(SystemExit):
        turns.parser("").parse_args(["--before", str(tmp_path)])
    assert f"must be a checkout of this package. Received: {tmp_path}." in capsys.readouterr().err


def test_a_system_that_does_not_end_is_ended_with_its_processes(turns, tmp_path):
    marker = tmp_path / "marker"
    program = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 2; touch {marker}'])"
    with pytest.raises(RuntimeError, match="for it took longer than 0.5 s"):
        system = turns.System("this package", (sys.executable, "-c", program))
        turns.measured([system], 1, timeout=0.5)
    time.sleep(2)
    assert not marker.exists()


def test_of_several_workers_the_larger_numbers_count(turns):
    program = (
        "for ms, mib in [(2, 7), (3, 5)]: "
        'print(f\'[worker {ms - 2}] RESULT {{"ms": {ms}, "mib": {mib}}}\')'
    )
    system = turns.System("two", (sys.executable, "-c", program))
    assert turns.largest(system, workers=2) == {"ms": 3, "mib": 7}
    with pytest.raises(RuntimeError, match="prints 3 results .* Received: 2, and 0 from"):
        turns.largest(system, workers=3)


def test_every_process_has_one_thread(turns):
    program = (
        "import os, json; names = [name for name in os.environ if name.endswith('_THREADS')]; "
        "print('RESULT', json.dumps({name: int(os.environ[name]) for name in names}))"
    )
    found = turns.measured([turns.System("a", (sys.executable, "-c", program))], 1, 30)
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        assert found["a"][name] == [1]


def test_a_ratio_above_one_is_in_favour_of_the_first(turns):
    measured = {"a": {"x": [1, 2, 300]}, "b": {"x": [4, 4, 5]}, "c": {}}
    less = turns.table(measured, less_is_better=True).splitlines()
    assert less[2:] == ["| a | 2.00 |", "| b | 4.00 (2.00 x; 0.02 to 4.00) |", "| c | - |"]
    more = turns.table(measured, less_is_better=False).splitlines()
    assert more[3] == "| b | 4.00 (0.50 x; 0.25 to 60.00) |"


def test_what_was_measured_is_drawn(load, tmp_path):
    found = {"this package": {"4 KB": [1, 2], "1 MB": [3, 4]}, "a peer": {"4 KB": [5, 6]}}
    picture = tmp_path / "images" / "sums.svg"
    content = {"unit": "ms", "less_is_better": True, "found": found}
    load(BENCHMARKS / "plot.py").draw(content, picture)
    text = picture.read_text()
    for word in ("this package", "a peer", "4 KB", "1 MB", "ms, less is better"):
        assert f">{word}</text>" in text


def test_of_several_units_that_of_the_case_is_drawn(load, tmp_path):
    found = {"this package": {"ms, 9 rows": [1], "MiB": [3]}, "a peer": {"ms, 9 rows": [2]}}
    picture = tmp_path / "rows.svg"
    content = {"unit": "ms", "less_is_better": True, "found": found}
    load(BENCHMARKS / "plot.py").draw(content, picture)
    text = picture.read_text()
    assert ">ms, 9 rows</text>" in text and "MiB" not in text


def test_a_file_of_numbers_has_one_table(load, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["embedding.py", "rows", "--json", "rows.json"])
    with pytest.raises(SystemExit):
        load(BENCHMARKS / "embedding.py").main()
    assert "--json takes one table: tiny, or rows with one optimizer." in capsys.readouterr().err


def test_options_go_to_each_case_that_is_named():
    command = [sys.executable, "-m", "benchmarks", "start", "parameter_server", "--help"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0
    assert "usage: start.py" in run.stdout and "usage: parameter_server.py" in run.stdout


def test_a_case_that_does_not_exist_is_refused():
    command = [sys.executable, "-m", "benchmarks", "start", "strat"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2
    assert "must be one of all_reduce, " in run.stdout and "Received: strat." in run.stdout


def test_every_program_is_of_a_case(load):
    programs = {case.program for case in load(BENCHMARKS / "__main__.py").CASES.values()}
    # They measure no peer, and are described in docs/capacity.md and docs/memory.md.
    others = {"__main__.py", "turns.py", "plot.py", "drawing.py", "capacity.py", "memory.py"}
    assert programs | others == {path.name for path in BENCHMARKS.glob("*.py")}


def test_the_examples_in_them_hold(load, turns):
    for module in (turns, load(BENCHMARKS / "peers" / "sizes.py")):
        failed, tried = doctest.testmod(module)
        assert tried and not failed


def test_the_examples_in_the_sizes_of_tiny_hold(load):
    failed, tried = doctest.testmod(load(BENCHMARKS / "peers" / "tiny.py"))
    assert tried and not failed


CAN_MAKE_HOSTS = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "unshare")))
needs_hosts = pytest.mark.skipif(
    not CAN_MAKE_HOSTS, reason="needs root, ip and tc (Debian: iproute2), unshare"
)


@pytest.mark.slow
def test_the_embedding_is_measured(forked):
    command = [forked.python, str(BENCHMARKS / "embedding.py"), "rows", "tiny", "prefetch"]
    command += ["placement", "--short", "--rounds", "1", "--alone", "--optimizers", "Adam"]
    process = forked.popen([*command, "--timeout", "900"])
    output, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, output
    lines = [line for line in output.splitlines() if line.startswith("| this package, ")]
    # Rows, Tiny, three sizes of small tables, and two ways with each of three delays.
    assert len(lines) == 5 + 2 * 3, output
    assert not any(" - " in line for line in lines), output
    forked.assert_nothing_left()


@needs_hosts
@pytest.mark.slow
def test_rows_ahead_between_two_hosts_are_measured(job):
    command = [job.python, str(BENCHMARKS / "embedding.py"), "lockstep", "--delays", "1"]
    process = job.popen([*command, "--short", "--rounds", "1", "--timeout", "300"])
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    found = re.findall(r"^\| this package, (with|without) prefetch_rows \| [\d.]+", output, re.M)
    assert found == ["with", "without"], output
    job.assert_nothing_left()


@pytest.mark.slow
def test_onednn_is_measured(forked):
    command = [forked.python, str(BENCHMARKS / "onednn.py"), "--short", "--rounds", "1"]
    process = forked.popen([*command, "--isa", "AVX2", "--timeout", "900"])
    output, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, output
    assert "| without oneDNN | " in output and "| with oneDNN | " in output, output


def test_sums_in_shared_memory_are_measured(forked):
    command = [
        forked.python,
        str(BENCHMARKS / "shared_memory.py"),
        "--short",
        "--workers",
        "2",
        "3",
    ]
    code, output = forked.finish(forked.popen(command), timeout=600)
    assert code == 0, output
    assert len(re.findall(r"^\| [23] \| 1 \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", output, re.M)) == 2
    forked.assert_nothing_left()


@pytest.mark.slow
@needs_hosts
def test_the_model_of_steps_is_fitted_and_drawn(job):
    picture = Path(job.directory) / "scaling.svg"
    command = [job.python, str(BENCHMARKS / "scaling.py"), "--short", "--rounds", "1"]
    process = job.popen([*command, "--timeout", "900", str(picture)])
    output, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, output
    assert "MB, checked | " in output and "| step | measured, ms |" in output, output
    assert "Prediction: steps of" in picture.read_text()
    job.assert_nothing_left()


def test_the_model_of_sums_finds_what_sums_are_made_of(load):
    scaling = load(BENCHMARKS / "scaling.py")
    true = [1e-3, 2e-10, 5e-3, 1e-3, 3e-10, 1.1]
    points = [
        (place, length, scaling.sum_seconds(true, place, length, scaling._shared(place)))
        for place in scaling.FITTED
        for length in (4e3, 1e6, 1e8)
    ]
    assert scaling.fitted(points) == pytest.approx(true, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "all_reduce",
        "mirrored",
        "parameter_server",
        "click_model",
        "start",
        "checkpoint",
        "monitoring",
        pytest.param("two_hosts", marks=needs_hosts),
    ],
)
def test_a_benchmark_runs(job, request, name):
    # Those of two hosts are in networks of their own, and a fork has no start to measure.
    if name not in ("two_hosts", "start"):
        request.getfixturevalue("forked")
    command = [job.python, str(BENCHMARKS / f"{name}.py"), "--short", "--rounds", "1"]
    process = job.popen([*command, "--timeout", "900"])
    output, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, output
    assert "| this package, " in output
    assert not any(" - " in line for line in output.splitlines() if line.startswith("|")), output
    job.assert_nothing_left()


@pytest.mark.slow
def test_the_parts_of_a_step_are_measured_and_drawn(job):
    picture = Path(job.directory) / "step.svg"
    command = [job.python, str(BENCHMARKS / "step.py"), "--short", "--before", str(ROOT)]
    process = job.popen([*command, "--timeout", "900", str(picture)])
    output, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, output
    rows = dict(re.findall(r"^\| ([\w ]+) \| ([\d.]+ \| [\d.]+ \| [\d.]+) \|$", output, re.M))
    values = {part: [float(ms) for ms in row.split(" | ")] for part, row in rows.items()}
    for part in ("forward pass", "backward pass", "update", "the step"):
        assert min(values[part]) > 0, output
    with_others, alone, by_horovod = values["exchange"]
    assert with_others > 0 == alone, output
    assert by_horovod > 0, output
    assert "before, over Horovod" in picture.read_text()
    job.assert_nothing_left()


def test_a_step_is_divided_into_its_parts(load):
    spans = load(BENCHMARKS / "peers" / "step_spans.py")
    graph, stream, main = "tf_Compute/1, 1", "python, 2", "python, 3"
    step = [
        ("multi_step_on_iterator", main, 10, 20),
        ("f/sequential_1/dense/Relu:_MklNativeFusedMatMul", graph, 11, 13),
        ("f/gradient_tape/sequential_1/dense/MatMul:MatMul", graph, 13, 16),
        ("EagerLocalExecute: QueueDequeueV2", stream, 15, 16),
        ("EagerLocalExecute: QueueEnqueueV2", stream, 17.5, 17.6),
        ("f/adam/update_0/Square:Square", graph, 18, 19),
        ("ExecutorState::Process", graph, 18, 19),
    ]
    following = [(name, thread, begin + 11, end + 11) for name, thread, begin, end in step]
    events = [spans.Event(*event) for event in step + following]
    (found,) = spans.steps_of(sorted(events, key=lambda event: event.begin))
    assert spans.milliseconds(found) == {
        "forward pass": 2,
        "backward pass": 3,
        "update": 1,
        "between two steps": 1,
        "no operation": 4,
        "the step": 11,
        "exchange": 1.5,
    }


def test_calls_of_python_are_exchanges_and_no_part_of_the_graph(load):
    spans = load(BENCHMARKS / "peers" / "step_spans.py")
    graph = "tf_Compute/1, 1"
    events = [
        spans.Event("one_step_on_iterator", "python, 3", 0, 10),
        spans.Event("f/sequential_1/dense/MatMul:MatMul", graph, 1, 3),
        spans.Event("f/PyFunc:PyFunc", graph, 4, 7),
        spans.Event("one_step_on_iterator", "python, 3", 11, 20),
    ]
    (found,) = spans.steps_of(events)
    parts = spans.milliseconds(found)
    assert parts["exchange"] == 3 and parts["forward pass"] == 2 and parts["no operation"] == 8


def test_operations_of_horovod_are_exchanges(load):
    spans = load(BENCHMARKS / "peers" / "step_spans.py")
    events = [
        ("ExecutorState::ProcessAsync::Start", "tf_Compute/1, 1", 1, 1.1),
        ("ExecutorState::ProcessAsync::Done", "python, 2", 4, 4.1),
        ("ExecutorState::ProcessAsync::Done", "python, 2", 5, 5.1),
    ]
    found = spans.exchanges_of([spans.Event(*event) for event in events])
    assert found == [("exchange", 1, 4)]
