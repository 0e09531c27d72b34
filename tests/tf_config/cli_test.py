import json
import subprocess
import sys

import pytest

from tf_config.cli import main

CONFIG = (
    '{"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}, '
    '"environment": "cloud"}'
)


@pytest.fixture
def tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", CONFIG)


def test_build_prints_one_configuration_a_line(capsys):
    assert main(["build", "--workers", "2", "--ps", "1", "--chief"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["task"] for line in lines] == [
        {"type": "chief", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "ps", "index": 0},
    ]
    assert len({json.dumps(json.loads(line)["cluster"]) for line in lines}) == 1


def test_build_prints_the_one_that_is_asked_for(capsys):
    assert main(["build", "--workers", "2", "--task", "worker:1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["task"] == {"type": "worker", "index": 1}


def test_show_prints_every_task_its_rank_and_which_one_this_is(tf_config, capsys):
    assert main(["show"]) == 0
    output = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines()]
    assert ["chief 0", "a:1", "0", ""] in rows
    assert ["worker 0", "b:2", "1", "this task"] in rows
    assert "environment: cloud" in output


def test_check_says_ok_and_that_there_is_no_authentication(tf_config, capsys):
    assert main(["check"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("ok: 1 chief, 1 worker; this task is worker 0\n")
    assert "no authentication" in output


def test_check_reads_a_file(tmp_path, capsys):
    path = tmp_path / "tf_config.json"
    path.write_text(CONFIG)
    assert main(["check", "--file", str(path)]) == 0
    assert main(["check", "--file", str(tmp_path / "none")]) == 2
    path.write_bytes(b"\xff")
    assert main(["check", "--file", str(path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("tf-config: error: --file names a text file.") for line in errors)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["build", "--workers", "x"], "a number of tasks is 0 or more, received 'x'"),
        (["build", "--workers", "-1"], "a number of tasks is 0 or more"),
        (["build", "--workers", "0"], "at least one task that trains"),
        (["build", "--task", "worker:5"], "'task' names a task of 'cluster'"),
        (["build", "--task", "boss"], "A task's type is one of"),
        (["run"], "required: program"),
        (["run", "--workers", "0", "x.py"], "at least one task that trains"),
        (["run", "--start-timeout", "0", "x.py"], "a time in seconds is above 0, received '0'"),
        (["run", "--start-timeout", "nan", "x.py"], "a time in seconds is above 0"),
        (["show"], "Received: it is not set"),
        (["check"], "Received: it is not set"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, message, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tf-config: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("command", ["build", "show", "check", "run"])
def test_the_help_of_each_command_fits_a_screen_and_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert "example: " in output
    assert output.count("\n") < 25


def test_a_reader_that_leaves_early_gets_no_traceback():
    command = f"{sys.executable} -m tf_config build --workers 2000 | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert result.stdout.startswith('{"cluster"')
    assert result.stderr == ""


def test_tf_config_imports_no_tensorflow():
    code = "import sys, tf_config.cli; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
