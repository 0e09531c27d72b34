"""Every cell of two columns of the compatibility table; see tests/distributed/cells.

`make compatibility` runs all columns, ours and stock TensorFlow's, and fails in the same way.
"""

import re
from pathlib import Path

import pytest
from compatibility import Result, judged, literal, page, surprises
from compatibility_columns import EXPECTED, KERAS, STRATEGIES, TABLES

TOOL = Path(__file__).resolve().parent.parent / "tools" / "compatibility.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where the numbers of one process are kept for all tests."""
    return tmp_path_factory.mktemp("one-process")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "strategy", "keras"),
    [
        ("models", "multi-worker", "keras"),
        ("models", "servers-sync", "tf_keras"),
        ("rows", "servers-geo", "keras"),
    ],
)
def test_every_cell_is_as_the_table_says(forked, cache, table, strategy, keras):
    command = [forked.python, TOOL, "--strategy", strategy, "--keras", keras, "--cache", cache]
    command += ["--table", table]
    # Beside other tests a cell takes several times as long as alone.
    process = forked.popen([*map(str, command), "--patience", "600"])
    output, _ = process.communicate(timeout=3000)
    assert process.returncode == 0, output
    assert output.count("| yes") >= {"models": 20, "rows": 8}[table], output
    forked.assert_nothing_left()


def record(facts, tolerance=1e-5):
    return {"state": "ok", "facts": facts, "tolerance": tolerance}


ONE = {"weights": [[1.0, 2.0]], "logs": {"loss": [0.5]}}
NEAR = {"weights": [[1.0, 2.0 + 1e-6]], "logs": {"loss": [0.5]}}
FAR = {"weights": [[1.0, 2.1]], "logs": {"loss": [0.5]}}


def test_the_same_numbers_are_ok():
    assert judged([record(ONE), record(ONE)], NEAR).state == "ok"


def test_workers_are_the_same_to_the_bit():
    result = judged([record(ONE), record(NEAR)], None)
    assert result.state == "wrong"
    assert "weights 0 1 differ" in result.note


def test_numbers_are_those_of_one_process():
    assert judged([record(FAR)], ONE).state == "wrong"
    assert judged([record(FAR, tolerance=None)], ONE).state == "ok"
    assert judged([record({"weights": [[1.0]], "logs": {"loss": [0.5]}})], ONE).state == "wrong"
    assert judged([record(FAR)], ONE, least=0.1).state == "ok"


def test_a_cell_that_was_not_reached_is_a_surprise():
    cells = {"Dense"}
    assert surprises("keras", "mirrored", {"Dense": Result("ok")}, cells) == []
    assert surprises("keras", "mirrored", {}, cells) == ["Dense: not run"]
    assert surprises("keras", "mirrored", {"Dense": Result("hangs")}, cells) == ["Dense: hangs"]
    assert surprises("keras", "stock-mirrored", {"Dense": Result("hangs")}, cells) == []


@pytest.mark.parametrize(("key", "why"), EXPECTED.items())
def test_an_expected_failure_that_is_gone_is_a_surprise(key, why):
    keras, strategy, cell = key
    for result, count in [
        (Result("fails", f"Error: {why}."), 0),
        (Result("fails", "Error: another"), 1),
        (Result("ok"), 1),
    ]:
        assert len(surprises(keras, strategy, {cell: result}, {cell})) == count


def test_the_page_has_each_error_once():
    failed = Result("fails", "ValueError: no | way")
    text = page(
        {("models", "keras"): {"mirrored": {"Dense": Result("ok"), "A": failed, "B": failed}}}
    )
    assert "| Dense | yes |" in text
    assert "| B | fails [1] |" in text
    assert text.count("no | way") == 1


PAGE = TOOL.parent.parent / "docs" / "compatibility.md"


def columns_of(text, table="models"):
    """Returns what the page says: Keras, strategy, cell -> the state and the note."""
    notes = dict(re.findall(r"^(\d+)\. (.*)$", text, re.M))
    keras_of = {TABLES[table] + title: keras for keras, title in KERAS.items()}
    names = {column.title: name for name, column in STRATEGIES.items()}
    found = {}
    for title, part in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        if title not in keras_of:
            continue
        head, _, *rows = [
            line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")
        ]
        for cell, *states in rows:
            for column, entry in zip(head, states, strict=True):
                state, _, number = entry.partition(" [")
                note = notes[number.rstrip("]")].strip("`") if number else ""
                found[keras_of[title], names[column], cell] = state, note
    return found


def test_a_page_is_read_as_it_was_written():
    failed = Result("fails", "ValueError: no way")
    results = {"mirrored": {"A": Result("ok"), "B": failed}, "stock-mirrored": {"A": failed}}
    results["stock-mirrored"]["B"] = Result("missing", "none")
    found = columns_of(page({("models", "keras"): results}))
    assert found["keras", "mirrored", "A"] == ("yes", "")
    assert found["keras", "mirrored", "B"] == ("fails", "ValueError: no way")
    assert found["keras", "stock-mirrored", "B"] == ("missing", "none")


@pytest.mark.parametrize("table", TABLES)
def test_the_page_is_what_is_expected(monkeypatch, table):
    """Each column of the page in docs has these cells, and ours fail where EXPECTED says so."""
    monkeypatch.syspath_prepend(str(TOOL.parent.parent / "tests" / "distributed"))
    from cells import CELLS

    found = columns_of(PAGE.read_text(), table)
    cells = {cell.name for cell in CELLS[table]}
    ours = {name for name, column in STRATEGIES.items() if column.is_ours}
    columns = {(keras, name) for keras, name, _ in found}
    assert {keras for keras, _ in columns} == set(KERAS)
    names = {name for name, column in STRATEGIES.items() if table in column.tables}
    assert {name for _, name in columns} == names, "make compatibility"
    for column in columns:
        measured = {cell for *other, cell in found if tuple(other) == column}
        assert measured == cells, f"{column}: make compatibility"
    for (keras, name, cell), (state, note) in found.items():
        if name in ours:
            why = EXPECTED.get((keras, name, cell))
            states = ("yes", "missing") if why is None else ("fails",)
            assert state in states, (keras, name, cell, state, note)
            assert why is None or literal(why).strip("`") in note, (cell, note)


def test_the_readme_counts_what_the_page_has():
    """And what fails of our strategies is named there."""
    readme = (TOOL.parent.parent / "README.md").read_text()
    _, _, rest = readme.partition("\n## What works\n")
    part, _, _ = rest.partition("\n## ")
    found = columns_of(PAGE.read_text())
    names = {column.title: name for name, column in STRATEGIES.items()}
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in part.splitlines()
        if line.startswith("|")
    ]
    assert head[1:] == list(KERAS.values())
    for title, *counts in rows:
        for keras, count in zip(KERAS, counts, strict=True):
            states = [
                state
                for (keras_of, name, _), (state, _) in found.items()
                if (keras_of, name) == (keras, names[title]) and state != "missing"
            ]
            expected = f"{states.count('yes')} of {len(states)}" if states else "not measured"
            assert count == expected, (title, keras)
    for (_, name, cell), (state, _) in found.items():
        if STRATEGIES[name].is_ours and state not in ("yes", "missing"):
            assert cell.lower() in part.lower(), f"{name}: {cell}"
