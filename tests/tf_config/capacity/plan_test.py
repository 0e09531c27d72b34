"""The capacity planner: its sums by hand, its inverse, and `tf-config plan`."""

import json
import random
import subprocess
import sys

import pytest
import yaml

from tf_config import ClusterConfigError
from tf_config.capacity import PlannedTable, plan_capacity
from tf_config.cli import main

USERS = {"rows": 1_000_000, "width": 16, "hotness": 4, "unique_ratio": 0.5}
GIB = 1 << 30


def test_the_memory_of_a_worker_is_the_sum_of_what_a_row_takes():
    plan = plan_capacity({"users": USERS}, batch=100, workers=4, optimizer="adam")
    memory = plan.memory
    assert memory.rows == 250_000 * 64
    assert memory.slot_variables == 2 * memory.rows
    assert memory.times_and_counts + memory.map == 250_000 * (8 + 48)
    assert memory.growth == 0  # all of its arrays are small
    assert memory.peak - memory.training == memory.saving == 250_000 * 16 + (48 << 20)
    assert memory.moving == memory.rows
    one = plan_capacity({"users": USERS}, batch=100, optimizer=2).memory
    assert one.growth > 0
    assert one.rows == 4 * memory.rows
    assert one.peak - one.training == max(one.saving, one.moving)


def test_the_traffic_of_workers_is_of_what_others_have():
    plan = plan_capacity({"users": USERS}, batch=100, workers=4)
    traffic = plan.traffic["users"]
    assert traffic.unique == 200
    assert (traffic.away, traffic.ids, traffic.rows) == (150, 150 * 24, 150 * 64)
    assert traffic.gradients == traffic.rows
    assert plan.worker_bytes == (150 * 152, 150 * 152)
    assert plan_capacity({"users": USERS}, batch=100).worker_bytes == (0, 0)


def test_rows_in_16_bits_take_half_of_what_their_numbers_take():
    short = {**USERS, "row_dtype": "bfloat16", "exchange_dtype": "bfloat16"}
    plan = plan_capacity({"users": short}, batch=100, workers=4, optimizer="adam")
    assert plan.memory.rows == 250_000 * 32
    assert plan.memory.slot_variables == 2 * 250_000 * 64
    assert plan.traffic["users"].rows == plan.traffic["users"].gradients == 150 * 32
    short["slot_dtype"] = "bfloat16"
    plan = plan_capacity({"users": short}, batch=100, workers=4, optimizer="adam")
    assert plan.memory.slot_variables == 2 * 250_000 * 32
    with pytest.raises(ClusterConfigError, match="row_dtype must be one of float32, bfloat16"):
        plan_capacity({"users": {**USERS, "row_dtype": "float16"}}, batch=100)
    with pytest.raises(ClusterConfigError, match="Received: .*bfloat16"):
        plan_capacity({"users": {**USERS, "slot_dtype": ["bfloat16"]}}, batch=100)


def test_servers_have_all_rows_and_share_the_traffic():
    plan = plan_capacity({"users": USERS}, batch=100, workers=6, servers=2, optimizer="sgd")
    assert plan.memory.rows == 500_000 * 64
    assert plan.worker_bytes == (200 * (24 + 64), 200 * 64)
    assert plan.server_bytes == (3 * 200 * 64, 3 * 200 * (24 + 64))


@pytest.mark.parametrize("exponent", [0.0, 1.05])
@pytest.mark.parametrize("rows", [300, 50_000])
def test_unique_ids_are_what_drawing_them_gives(exponent, rows):
    table = PlannedTable("t", rows, 1, hotness=2, zipf=exponent)
    generator = random.Random(0)
    weights = [k**-exponent for k in range(1, rows + 1)]
    found = [len(set(generator.choices(range(rows), weights, k=2000))) for _ in range(20)]
    assert table.unique_of(1000) == pytest.approx(sum(found) / 20, rel=0.01)


def test_the_tasks_needed_are_the_fewest_that_are_enough():
    tables = {"users": {**USERS, "rows": 1e9}, "items": {"rows": 2e8, "width": 32}}
    options = {"batch": 1000, "optimizer": "adagrad", "memory_gib": 24}
    needed = plan_capacity(tables, workers=1, **options).tasks_needed
    assert plan_capacity(tables, workers=needed, **options).limit == "neither"
    assert plan_capacity(tables, workers=needed - 1, **options).limit == "memory"
    too_small = plan_capacity(tables, workers=1, **{**options, "memory_gib": 0.5})
    assert too_small.tasks_needed is None
    assert "no number is enough" in str(too_small)


def test_the_network_limits_servers_by_their_number_and_workers_by_their_batch():
    options = {"batch": 10_000, "gbit_per_second": 1.0, "step_seconds": 0.1}
    plan = plan_capacity({"users": USERS}, workers=8, servers=1, **options)
    assert plan.limit == "network"
    needed = plan.tasks_needed
    assert plan_capacity({"users": USERS}, workers=8, servers=needed, **options).limit == "neither"
    fewer = plan_capacity({"users": USERS}, workers=8, servers=needed - 1, **options)
    assert fewer.limit == "network"
    shared = plan_capacity({"users": USERS}, workers=8, **{**options, "gbit_per_second": 0.1})
    assert (shared.limit, shared.tasks_needed) == ("network", None)
    assert "a smaller batch needs less" in str(shared)


def test_an_array_has_no_more_rows_than_an_int32_counts():
    plan = plan_capacity({"wide": {"rows": 1e11, "width": 1}}, batch=10, workers=46)
    assert plan.limit == "rows"
    assert plan.tasks_needed == 47


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ({}, {}, "from names to at least one table. Received: {}"),
        ({"t": {"rows": 5}}, {}, "A table must have rows and width"),
        ({"t": {"rows": 5, "width": 1, "x": 1}}, {}, "may have hotness, unique_ratio, zipf"),
        ({"t": {"rows": 0, "width": 1}}, {}, "rows of the table 't' must be a number, 1 or more"),
        ({"t": {"rows": 5, "width": 1.5}}, {}, "width must be an integer. Received: width=1.5"),
        ({"t": {"rows": float("nan"), "width": 1}}, {}, "Received: nan"),
        ({"t": {**USERS, "zipf": 1.0}}, {}, "Received: both for 't'"),
        ({"t": {**USERS, "unique_ratio": 2}}, {}, "0 or more, and 1 at most. Received: 2"),
        ({"t": USERS}, {"batch": "many"}, "batch must be a number, 1 or more. Received: 'many'"),
        ({"t": USERS}, {"workers": 0}, "workers must be a number, 1 or more. Received: 0"),
        ({"t": USERS}, {"servers": 0.5}, "servers must be an integer. Received: 0.5"),
        ({"t": USERS}, {"memory_gib": 0}, "memory_gib must be a number, above 0. Received: 0"),
        ({"t": USERS}, {"step_seconds": 1}, "requires gbit_per_second. Received: step_seconds"),
        ({"t": USERS}, {"optimizer": "lamb"}, "optimizer must be one of sgd, .* Received: 'lamb'"),
    ],
)
def test_what_has_no_meaning_is_refused(tables, options, message):
    with pytest.raises(ClusterConfigError, match=message):
        plan_capacity(tables, **{"batch": 10, **options})


@pytest.mark.parametrize("form", [json.dumps, yaml.safe_dump])
def test_a_file_and_flags_say_the_same(form, tmp_path, capsys):
    path = tmp_path / "tables"
    path.write_text(
        form({"tables": {"users": {"rows": "1e9", "width": 16}}, "batch": 9, "workers": 3})
    )
    flags = "--table users:rows=1e9,width=16 --batch 9 --memory-gib 64 --ps 2".split()
    assert main(["plan", *flags, "--workers", "3", "--optimizer", "1"]) == 0
    output = capsys.readouterr().out
    assert main(["plan", str(path), *flags[4:], "--optimizer", "adagrad"]) == 0
    assert capsys.readouterr().out == output
    assert "│ users │ 1,000,000,000 x 16 │" in output
    assert "servers needed: 4" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Received: no --table"),
        (["--table", "t:rows=1,width=1"], "Received: no --batch"),
        (["--table", "t"], "--table must be NAME:rows=N,width=N"),
        (["--table", "t:rows=1,widht=1", "--batch", "1"], "'widht' for 't'. Correct or omit it"),
        (["--table", "t:rows=1,widht=1", "--batch", "1"], "Did you mean 'width'?"),
        (["--table", "t:rows=1", "--batch", "1"], "Received: no width for 't'"),
        (["--table", "t:rows=1,rows=2,width=1", "--batch", "1"], "Received: 'rows' twice"),
        (2 * ["--table", "t:rows=1,width=1"] + ["--batch", "1"], "Received: 't' twice"),
        (["--table", "t:rows=1,width=1", "--batch", "1", "--memory", "3"], "'--memory-gib'?"),
        (["--table", "t:rows=1,width=1", "--batch", "1", "--optimizer", "adm"], "'adam'?"),
        (["--table", "t:rows=x,width=1", "--batch", "1"], "rows must be a number. Received: 'x'"),
        (["--table", "t:rows=1,width=1", "--batch", "1", "--ps", "x"], "servers must be a number"),
        (["no-such-file"], "FILE must name a text file"),
    ],
)
def test_wrong_input_is_one_line(arguments, message, capsys):
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "FILE must be YAML or JSON"),
        ("[1]", "FILE must be a mapping with tables, batch"),
        ("{tabels: {}}", "Received: 'tabels' in"),
        ("{tables: [1], batch: 1}", "must be a mapping from names to tables. Received: [1]"),
    ],
)
def test_a_wrong_file_is_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "tables.yaml"
    path.write_text(text)
    assert main(["plan", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_tensorflow_is_not_imported():
    code = (
        "import sys\n"
        "from tf_config.cli import main\n"
        "main(['plan', '--table', 't:rows=9,width=1', '--batch', '1'])\n"
        "sys.exit(bool({'tensorflow', 'numpy', 'strategies'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
