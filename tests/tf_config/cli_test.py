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
    assert "read from: tf_config" in output


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
        (["build", "--workers", "x"], "a number is 0 or more, received 'x'"),
        (["build", "--workers", "-1"], "a number is 0 or more"),
        (["build", "--workers", "0"], "at least one task that trains"),
        (["build", "--task", "worker:5"], "'task' names a task of 'cluster'"),
        (["build", "--task", "boss"], "A task's type is one of"),
        (["run"], "required: program"),
        (["run", "--workers", "0", "x.py"], "at least one task that trains"),
        (["run", "--start-timeout", "0", "x.py"], "a time in seconds is above 0, received '0'"),
        (["run", "--start-timeout", "nan", "x.py"], "a time in seconds is above 0"),
        (["run", "--threads-per-worker", "0", "x.py"], "threads are 1 or more, received '0'"),
        (["show"], "Received: none of tf_config, paddle, slurm is there"),
        (["check"], "Received: none of tf_config, paddle, slurm is there"),
        (["check", "--from", "lsf"], "--from is one of tf_config, paddle, slurm"),
        (["check", "--from", "slurm", "--file", "x"], "not allowed with argument"),
        (["exec"], "required: program"),
        (["exec", "true"], "Received: none of tf_config, paddle, slurm is there"),
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


@pytest.mark.parametrize(
    "command", ["build", "show", "check", "run", "exec", "split", "doctor", "completion"]
)
def test_the_help_of_each_command_fits_a_screen_and_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert "example: " in output
    assert output.count("\n") <= 40
    assert max(map(len, output.splitlines())) <= 100


def test_a_description_keeps_its_capitals(capsys):
    with pytest.raises(SystemExit):
        main(["build", "--help"])
    assert "Print a TF_CONFIG for each task" in capsys.readouterr().out


def test_ctrl_c_is_no_traceback():
    code = (
        "import os, signal, sys\n"
        "from tf_config.cli import main\n"
        "def hook(event, _):\n"
        "    if event == 'subprocess.Popen':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(hook)\n"
        "sys.exit(main(['doctor']))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 130
    assert result.stderr == ""


def test_exec_becomes_the_program_with_the_tf_config_of_the_scheduler(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(os.environ['TF_CONFIG'], sys.argv[1:]); sys.exit(5)")
    step = {
        "SLURM_JOB_ID": "1",
        "SLURM_PROCID": "1",
        "SLURM_JOB_NODELIST": "n[9-10]",
        "SLURM_TASKS_PER_NODE": "1(x2)",
    }
    result = subprocess.run(
        [sys.executable, "-m", "tf_config", "exec", "--", str(script), "--epochs", "3"],
        env={"PYTHONPATH": ":".join(sys.path), **step},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 5
    assert '"task": {"type": "worker", "index": 1}' in result.stdout
    assert '"worker": ["n9:' in result.stdout
    assert result.stdout.endswith("['--epochs', '3']\n")


def test_exec_of_a_program_that_does_not_exist_is_one_line(tf_config, capsys):
    for program, message in [("none.py", "no file here"), ("none", "No such file")]:
        assert main(["exec", program]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_reader_that_leaves_early_gets_no_traceback():
    command = f"{sys.executable} -m tf_config build --workers 2000 | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert result.stdout.startswith('{"cluster"')
    assert result.stderr == ""


def test_what_takes_long_to_import_is_not_imported():
    code = (
        "import sys, tf_config.cli; "
        "sys.exit(bool({'tensorflow', 'keras', 'numpy', 'rich', 'shtab'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
