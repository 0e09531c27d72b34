import json
import os
import re
import socket
import subprocess
import sys

import pytest
import yaml

from tf_config.builder import free_ports
from tf_config.cli import launchers, main, parser, run
from tf_config.hosts import Host
from tf_config.launcher.job import JobSpec
from tf_config.roles import Roles

CONFIG = (
    '{"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}, '
    '"environment": "cloud"}'
)
STEP = {
    "SLURM_JOB_ID": "1",
    "SLURM_PROCID": "1",
    "SLURM_JOB_NODELIST": "n[9-10]",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}


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
    ok, note = capsys.readouterr().out.splitlines()
    assert ok == "ok: 1 chief, 1 worker; this task is worker 0"
    assert note.startswith("note: TensorFlow's gRPC servers have no authentication")


def test_check_says_nothing_of_it_where_all_is_on_one_host(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", CONFIG.replace("b:2", "a:2"))
    assert main(["check"]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_check_reads_a_file(tmp_path, capsys):
    path = tmp_path / "tf_config.json"
    path.write_text(CONFIG)
    assert main(["check", "--file", str(path)]) == 0
    assert main(["check", "--file", str(tmp_path / "none")]) == 2
    path.write_bytes(b"\xff")
    assert main(["check", "--file", str(path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    message = "tf-config: error: --file must name a text file."
    assert all(line.startswith(message) for line in errors)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["runn", "x.py"], "Did you mean 'run'? See 'tf-config --help'."),
        (
            ["run", "--worker", "2", "x.py"],
            "Did you mean '--workers'? See 'tf-config run --help'",
        ),
        (["run", "--dryrun", "x.py"], "Did you mean '--dry-run'?"),
        (["check", "--conect"], "--conect. Did you mean '--connect'? See 'tf-config check --help'"),
        (["show", "extra"], "unrecognized arguments: extra. See 'tf-config show --help'."),
        (["render", "slrum", "x"], "Did you mean 'slurm'? See 'tf-config render --help'."),
        (["render", "slurm"], "required: program. See 'tf-config render slurm --help'."),
        (
            ["render", "slurm", "--gress", "a", "x"],
            "'--gres'? See 'tf-config render slurm --help'",
        ),
        (["check", "--from", "slrum"], "Did you mean 'slurm'?"),
        (["check", "--timeout", "3"], "Received: no --connect"),
        (["build", "--task", "worker"], "must be given with its index. Received: 'worker'"),
        (["build", "--task", "wroker:0"], "Did you mean 'worker'?"),
        (["build", "--task", "evaluator"], "--task must name one of the requested tasks"),
        (["build", "--format", "yml"], "Did you mean 'yaml'?"),
        (["run", "--env", "1BAD=3", "x"], "cannot begin with a digit. Received: '1BAD'"),
        (["run", "--env", "TF_CONFIG=3", "x"], "TF_CONFIG cannot be set with --env"),
        (["run", "--port", "x", "x.py"], "the port must be from 1 to 65535, received 'x'"),
        (["build", "--workers", "x"], "the number must be 0 or more, received 'x'"),
        (["build", "--workers", "-1"], "the number must be 0 or more"),
        (["build", "--workers", "0"], "at least one task that trains"),
        (["build", "--task", "worker:5"], "--task must name one of the requested tasks"),
        (["build", "--task", "boss"], "A task's type must be one of"),
        (["run"], "required: program"),
        (["run", "--workers", "0", "x.py"], "at least one task that trains"),
        (["run", "--min-workers", "1", "x.py"], "--min-workers requires --max-restarts"),
        (["run", "--min-workers", "0", "x.py"], "number must be 1 or more, received '0'"),
        (["run", "--server-saves", "5", "x.py"], "--server-saves requires --ps and --max-restarts"),
        (["run", "--server-saves", "-1", "x.py"], "time in seconds must be above 0, received '-1'"),
        (["run", "--step-timeout", "0", "x.py"], "time in seconds must be above 0, received '0'"),
        (["run", "--start-timeout", "0", "x.py"], "time in seconds must be above 0, received '0'"),
        (["run", "--start-timeout", "nan", "x.py"], "the time in seconds must be above 0"),
        (["run", "--threads-per-worker", "0", "x.py"], "number must be 1 or more, received '0'"),
        (["show"], "Received: none of tf_config, vertex, paddle,"),
        (["check"], "Received: none of tf_config, vertex, paddle,"),
        (["check", "--from", "flux"], "--from must be one of tf_config, vertex, paddle,"),
        (["check", "--from", "slurm", "--file", "x"], "--file and --from cannot be combined"),
        (["exec"], "required: program"),
        (["exec", "--workers", "2", "true"], "Received: --workers only"),
        (["exec", "--task", "worker:0", "true"], "--task requires --workers and --rendezvous"),
        (
            ["exec", "--task", "ps:0", "--workers", "2", "--rendezvous", "file:///x", "true"],
            "--task must name one of the requested tasks. Received: ps 0",
        ),
        (
            ["exec", "--task", "worker:0", "--workers", "2", "--rendezvous", "x", "true"],
            "A rendezvous must be file:///directory",
        ),
        (["exec", "--interface", "eth99", "true"], "Received: none of"),
        (["run", "--interface", "eth99", "x"], "--interface must name a network interface of this"),
        (["run", "--env", "NO_SUCH_VARIABLE", "x"], "Received: 'NO_SUCH_VARIABLE'"),
        (["run", "--env", "=1", "x"], "--env must be NAME=VALUE"),
        (["run", "--ssh", "'", "x"], "--ssh must be a command"),
        (["run", "--hosts", "a", "--hostfile", "b", "x"], "not allowed with"),
        (["run", "--hosts", "a:", "x"], "Hosts must have the form"),
        (["run", "--quiet", "--verbose", "x"], "not allowed with"),
        (["build", "--port", "0"], "the port must be from 1 to 65535"),
        (["build", "--port", "65535", "--workers", "2"], "Use a lower --port"),
        (["build", "--hosts", "a:1", "--workers", "2"], "2 tasks for the 1 slots of a"),
        (["build", "--ps-hosts", "a"], "--ps-hosts requires parameter servers"),
        (["build", "--hostfile", "none"], "--hostfile must name a text file"),
        (["build", "--format", "xml"], "invalid choice: 'xml'"),
        (["exec", "true"], "Received: none of tf_config, vertex, paddle,"),
        (["exec", "true", "1"], "use 'tf-config run --workers 2 true 1'"),
        (["exec", "-m", "timeit", "pass"], "use 'tf-config run --workers 2 -m timeit pass'"),
        (["exec", "sh", "-c", "a\nb"], "use 'tf-config run --workers 2 train.py'"),
        (["show"], "use 'tf-config run --workers 2 train.py'"),
        (["check"], "use 'tf-config run --workers 2 train.py'"),
        (["exec", "--rendezvous", "http://x", "true"], "A rendezvous must be file:///directory"),
        (["check", "--rendezvous", "file:///x"], "add for example --task worker:0 --workers 2"),
        (["run", "-m"], "argument -m: expected the name of a module"),
        (["run", "-m", "os.none"], "-m must name a module. Received: 'os.none'"),
        (["run", "-m", "xml"], "a package without a module __main__"),
        (["run", "-mtimeit", "pass"], "the module must be a separate argument"),
        (["exec", "--log-dir", "d", "x"], "--log-dir is an option of 'tf-config run'"),
        (["train.py"], "To run a script, use 'tf-config run train.py'"),
        (["--workers", "2", "train.py"], "To run a script, use 'tf-config run train.py'"),
        (["launch", "train.py"], "To run a script, use 'tf-config run train.py'"),
        (["check", "--from", "mpirun"], "Did you mean 'openmpi'?"),
        (["render", "k8s", "x"], "Did you mean 'kubernetes'?"),
        (["doctor", "--np"], "unrecognized arguments: --np. See 'tf-config doctor --help'"),
        (["run", "--workers", "10.0.0.1:6170", "x"], "to name hosts, use --hosts"),
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
    ("command", "options", "ours"),
    [
        ("run", "--np 2", ["--workers N"]),
        ("run", "--np=2", ["--workers N"]),
        ("run", "-np4", ["--workers N"]),
        ("run", "--num_processes 2", ["--workers N"]),
        ("run", "--num-processes 2", ["--workers N"]),
        ("run", "--np", ["--workers N"]),
        ("run", "--nproc-per-node 2", ["--workers N", "--hosts H1:N,H2:N"]),
        ("run", "--nnodes 2 --nproc_per_node=4", ["--hosts H1:N,H2:N", "--workers N"]),
        ("run", "--server_num=2 --worker_num=2", ["--ps N", "--workers N"]),
        ("run", "--ips=a,b", ["--hosts H1:N,H2:N"]),
        ("run", "-H a:2", ["--hosts H1:N,H2:N"]),
        ("run", "-x A", ["--env NAME=VALUE"]),
        ("run", "--node-rank 0", ["omit it, and start this once"]),
        ("run", "--gpu_ids 0,1", ["--gpus-per-worker N"]),
        ("build", "-n 2", ["--workers N"]),
        ("render slurm", "-N 2 -p gpu -t 10", ["--nodes N", "--partition NAME", "--time H:MM:SS"]),
        ("render slurm", "--nproc-per-node 2", ["--ntasks-per-node N"]),
        ("render kubernetes", "--replicas 2", ["--workers N"]),
        ("exec", "-np 2", ["'mpirun -np 2 tf-config exec ...'", "tf-config run --workers 2"]),
        ("exec", "--master_addr a", ["--rendezvous tcp://first-host:port"]),
        ("show", "--nproc-per-node 2", ["'mpirun -np 2 tf-config show ...'"]),
        ("check", "--hosts a,b", ["'mpirun -np 2 tf-config check ...'"]),
    ],
)
def test_options_of_other_launchers_get_ours(command, options, ours, capsys):
    program = ["train.py"] if command in ("run", "exec") or "render" in command else []
    assert main([*command.split(), *options.split(), *program]) == 2
    error = capsys.readouterr().err
    for text in ours:
        assert text in error
    assert "Did you mean" not in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "build", "exec", "render slurm", "render kubernetes"])
def test_options_that_are_named_in_place_of_others_are_there(command):
    actions = parser()._actions
    for name in command.split():
        (found,) = [action for action in actions if isinstance(action.choices, dict)]
        known = found.choices[name]._option_string_actions
        actions = found.choices[name]._actions
    for option in {name for row in launchers._TABLE for name in row.names.split()} - known.keys():
        sentence = launchers.translate_option(option, known, f"tf-config {command}")
        ours = re.search(" is (-[-a-z]+)", sentence)
        assert sentence
        assert ours is None or ours[1] in known or "of 'tf-config run'" in sentence, sentence


@pytest.mark.parametrize("command", [["run", "--dry-run"], ["render", "slurm"]])
def test_a_module_runs_in_place_of_a_script(command, capsys):
    words = ["-m", "timeit", "-n", "1", "-m", "--workers", "2"]
    assert main([*command, "--workers", "1", *words]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith(f"{'' if 'run' in command else '-- '}{' '.join(words)}\n")
    assert "timeit.py, so it is passed to it" in captured.err


def test_a_modules_package_is_not_imported_to_find_it(tmp_path, monkeypatch, capsys):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    (package / "__main__.py").touch()
    (package / "wrong.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--dry-run", "-m", "package"]) == 0
    assert main(["run", "--dry-run", "-m", "package.wrong"]) == 2
    assert "wrong.py', line 1 ('def f(:'): invalid syntax" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("PADDLE_INIT_PORT", "PADDLE_INIT_PSERVERS"),
        ("PADDLE_TRAINER_ID", "PADDLE_TRAINER_ENDPOINTS or PADDLE_PSERVERS_IP_PORT_LIST"),
        ("MASTER_PORT", "MASTER_ADDR"),
        ("PMI_SIZE", "PMI_RANK"),
        ("SLURM_PROCID", "SLURM_JOB_ID"),
    ],
)
def test_a_variable_that_says_nothing_alone_names_what_is_missing(
    name, missing, monkeypatch, capsys
):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv(name, "7164")
    assert main(["exec", "true"]) == 2
    error = capsys.readouterr().err
    assert f"{name} and {missing} must be set together. Received: {name}='7164'" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    (
        "build show check run exec render split plan doctor completion".split()
        + ["render slurm", "render kubernetes"]
    ),
)
def test_the_help_of_each_command_fits_a_screen_and_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert "example: " in output
    assert output.count("\n") <= 40
    assert max(map(len, output.splitlines())) <= 100


def test_a_description_keeps_its_capitals(capsys):
    with pytest.raises(SystemExit):
        main(["build", "--help"])
    assert "Print TF_CONFIG for each task" in capsys.readouterr().out


def test_ctrl_c_is_no_traceback():
    code = (
        "import os, signal, sys\n"
        "from tf_config.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
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
    result = subprocess.run(
        [sys.executable, "-m", "tf_config", "exec", "--", str(script), "--epochs", "3"],
        env={"PYTHONPATH": ":".join(sys.path), **STEP},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 5
    assert '"task": {"type": "worker", "index": 1}' in result.stdout
    assert '"worker": ["n9:' in result.stdout
    assert result.stdout.endswith("['--epochs', '3']\n")


@pytest.fixture
def step(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ([], "2 worker; this task is worker 1"),
        (["--chief"], "1 chief, 1 worker; this task is worker 0"),
        (["--ps", "1"], "1 worker, 1 ps; this task is ps 0"),
        (["--chief", "--evaluator"], "1 chief; this task is evaluator 0"),
        (["--ps", "0"], "2 worker; this task is worker 1"),
    ],
)
def test_a_schedulers_tasks_get_the_roles_that_are_asked_for(step, roles, text, capsys):
    assert main(["check", *roles]) == 0
    assert capsys.readouterr().out.startswith(f"ok: {text}\n")
    assert main(["show", *roles]) == 0
    assert f"{text.partition('this task is ')[2]} " in capsys.readouterr().out


def test_exec_gives_the_roles_too_and_a_ps_task_is_a_server(step, tmp_path):
    serve = tmp_path / "strategies" / "serve.py"
    serve.parent.mkdir()
    (serve.parent / "__init__.py").touch()
    serve.write_text("import os; print(os.environ['TF_CONFIG'])")
    command = [sys.executable, "-m", "tf_config", "exec", "--ps", "1", "--", "no-such-program"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environ = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=60
    )
    config = json.loads(result.stdout)
    assert {job: len(tasks) for job, tasks in config["cluster"].items()} == {"worker": 1, "ps": 1}
    assert config["task"] == {"type": "ps", "index": 0}


def test_an_evaluator_is_dealt_no_gpus_of_a_host_that_nobody_knows(step, capsys):
    roles = ["--chief", "--evaluator"]
    assert main(["exec", *roles, "--gpus-per-worker", "1", "--", "true"]) == 2
    assert (
        "evaluator: it has no address, so it is not known which tasks share its host"
        in capsys.readouterr().err
    )


def test_what_a_login_script_prints_behind_the_answer_is_said(tmp_path, capfd):
    (tmp_path / "ssh").write_text("#!/bin/sh\ncat > /dev/null\nprintf '{}\\ngoodbye \\377\\n'\n")
    (tmp_path / "ssh").chmod(0o755)
    hosts = ["--hosts", "node1,node2", "--ssh", str(tmp_path / "ssh")]
    assert main(["run", *hosts, "true"]) == 2
    error = capfd.readouterr().err
    assert "goodbye" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [["check"], ["show"], ["exec", "true"]])
def test_more_roles_than_tasks_are_refused(step, command, capsys):
    assert main([command[0], "--ps", "2", *command[1:]]) == 2
    error = capsys.readouterr().err
    assert "2 processes for 2 ps, 0 chief, 0 evaluator" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("role", [["--ps", "1"], ["--ps", "0"], ["--chief"], ["--evaluator"]])
@pytest.mark.parametrize("command", [["check"], ["show"], ["exec", "true"]])
def test_an_environment_that_names_roles_takes_no_others(tf_config, command, role, capsys):
    assert main([command[0], *role, *command[1:]]) == 2
    error = capsys.readouterr().err
    assert f"'tf_config', which already assigns the roles. Received: {' '.join(role)}." in error
    assert error.count("\n") == 1


def test_a_file_takes_no_roles(tmp_path, capsys):
    path = tmp_path / "tf_config.json"
    path.write_text(CONFIG)
    assert main(["check", "--file", str(path), "--ps", "1", "--chief"]) == 2
    error = capsys.readouterr().err
    assert "with --file, which already assigns the roles. Received: --ps 1 --chief." in error
    assert error.count("\n") == 1


def test_exec_of_a_program_that_does_not_exist_is_one_line(tf_config, capsys):
    for program, message in [("none.py", "which is not a file here"), ("none", "No such file")]:
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
    slow = {"tensorflow", "keras", "numpy", "rich", "yaml", "shtab"}
    code = f"import sys, tf_config.cli; sys.exit(bool({slow} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("command", ["run", "exec"])
def test_a_script_that_python_cannot_read_is_said_once(command, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("import os\ndef f(:\n")
    assert main([command, str(script)]) == 2
    error = capsys.readouterr().err
    assert "script.py', line 2 ('def f(:'): invalid syntax." in error
    assert error.count("\n") == 1


def test_a_script_of_a_name_much_like_it_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["run", "tarin.py"]) == 2
    assert "Did you mean 'train.py'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        ("", ["--workers", "2"], "--workers"),
        ("", ["--epochs", "3", "--ps=1", "--dry-run"], "--ps=1, --dry-run"),
        ("", ["--epochs", "3", "workers", "-x", "--help"], None),
        ("parser.add_argument('--workers')", ["--workers", "2"], None),
        ("flags.DEFINE_integer('workers', 2, '')", ["--workers=2"], None),
    ],
)
def test_options_behind_the_script_that_are_also_ours_are_named(
    text, arguments, named, tmp_path, capsys
):
    script = tmp_path / "script.py"
    script.write_text(text)
    for command in (["run", "--dry-run"], ["render", "slurm"]):
        here = [word for word in arguments if command[0] == "run" or word != "--dry-run"]
        assert main([*command, str(script), *here]) == 0
        error = capsys.readouterr().err
        if named is None:
            assert error == ""
        elif command[0] == "run":
            assert error.startswith(f"tf-config: warning: {named} follows {script}")
            assert "Options of tf-config run must precede the program" in error


def test_a_dry_run_asks_no_host(capsys, tmp_path):
    script = tmp_path / "script.py"
    script.touch()
    hosts = ["--hosts", "no-such-host-a,no-such-host-b", "--ssh", "no-such-command"]
    assert main(["run", *hosts, "--dry-run", str(script)]) == 0
    captured = capsys.readouterr()
    assert "hosts are not queried" in captured.err
    lines = captured.out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"worker {index} on no-such-host-{name}" for index, name in enumerate("ab")
    ]


def test_gpus_that_this_machine_has_not_are_an_error(monkeypatch, capsys):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tf_config.launcher.job.gpus", lambda: 1)
    assert main(["run", "--workers", "2", "--gpus-per-worker", "1", "true"]) == 2
    assert "on a host with 1 NVIDIA GPUs" in capsys.readouterr().err


def test_build_for_hosts_in_every_format(capsys):
    roles = ["build", "--hosts", "a:2,[fd00::7]", "--ps", "1", "--evaluator"]
    assert main([*roles, "--port", "7000"]) == 0
    configs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert configs[0]["cluster"] == {
        "worker": ["a:7000", "a:7001", "[fd00::7]:7000"],
        "ps": ["a:7002"],
    }
    assert [config["task"]["type"] for config in configs] == [*["worker"] * 3, "ps", "evaluator"]
    assert main([*roles, "--port", "7000", "--format", "yaml"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == configs
    assert main([*roles, "--port", "7000", "--format", "env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line, config in zip(lines, configs, strict=True):
        command = ["bash", "-c", f"{line}\necho $TF_CONFIG"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert json.loads(shown) == config


def test_build_reads_a_hostfile_and_counts_ports_from_2222(tmp_path, capsys):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a slots=2\nb\n")
    assert main(["build", "--hostfile", str(hostfile), "--task", "worker:0", "--chief"]) == 0
    cluster = json.loads(capsys.readouterr().out)["cluster"]
    assert cluster == {"chief": ["a:2222"], "worker": ["a:2223", "b:2222"]}


def test_show_says_who_set_each_setting(tf_config, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert main(["show", "--start-timeout", "7"]) == 0
    output = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines()]
    assert ["KERAS_STRATEGIES_START_TIMEOUT", "7", "argument"] in rows
    assert ["OMP_NUM_THREADS", "3", "environment"] in rows
    assert ["TF_NUM_INTRAOP_THREADS", str(len(os.sched_getaffinity(0))), "default"] in rows


def test_check_connect_says_what_is_taken_closed_and_unreachable(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        (closed,) = free_ports(1)
        workers = [f"127.0.0.1:{taken}", f"127.0.0.1:{closed}"]
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        assert main(["check", "--connect"]) == 0
        output = capsys.readouterr().out
        assert f"taken        worker 0  127.0.0.1:{taken}" in output
        assert f"closed       worker 1  127.0.0.1:{closed}" in output
        workers[1] = "no-such-host.invalid:2222"
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        assert main(["check", "--connect", "--quiet"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Received: worker 1 at no-such-host.invalid:2222 (" in captured.err


def test_check_says_nothing_or_more(tf_config, capsys):
    assert main(["check", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["check", "--verbose"]) == 0
    assert "worker 0  b:2\nread from: tf_config\n" in capsys.readouterr().out


def test_exec_of_tasks_that_the_arguments_name(job):
    """As the tasks of a batch array would be started: none knows where the others are."""
    words = ["--workers", "3", "--rendezvous", f"file://{job.directory}/meeting", "--verbose"]
    processes = [
        job.popen([sys.executable, "-m", "tf_config", "exec", "--task", f"worker:{index}", *words,
                   "--env", f"A={index}", "--", "sh", "-c", "echo $TF_CONFIG $A"])
        for index in range(3)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=30)[0] for process in processes]
    for index, output in enumerate(outputs):
        assert (
            f"tf-config: worker {index} of worker 0, worker 1, worker 2, from arguments" in output
        )
        assert output.endswith(f'"task": {{"type": "worker", "index": {index}}}}} {index}\n')
    assert len({output.splitlines()[-1].partition(', "task"')[0] for output in outputs}) == 1


def test_a_scheduler_with_a_rendezvous_meets_at_free_ports(job):
    step = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "gone[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    processes = []
    for rank in range(2):
        job.environ |= {**step, "SLURM_PROCID": str(rank)}
        words = ["exec", "--rendezvous", f"file://{job.directory}/m", "--", "sh", "-c"]
        command = [sys.executable, "-m", "tf_config", *words, "echo $TF_CONFIG"]
        processes.append(job.popen(command))
    outputs = [process.communicate(timeout=30)[0] for process in processes]
    assert all("gone" not in output and '"index"' in output for output in outputs)


def test_run_starts_every_role_and_ends_the_servers_with_the_workers(job):
    script = job.script(
        "import json, os, time\n"
        "task = json.loads(os.environ['TF_CONFIG'])['task']\n"
        "print('is', task['type'], flush=True)\n"
        "time.sleep(1)\n"
    )
    serve = job.directory / "strategies" / "serve.py"
    serve.parent.mkdir()
    (serve.parent / "__init__.py").touch()
    serve.write_text("import time; print('serves', flush=True); time.sleep(60)")
    job.environ["PYTHONPATH"] = f"{job.directory}:{job.environ['PYTHONPATH']}"
    code, output = job.run("--ps", 2, "--chief", "--evaluator", "--workers", 1, script, timeout=20)
    assert code == 0, output
    for task in ("chief 0", "worker 0", "evaluator 0"):
        assert f"[{task}] is {task.split()[0]}\n" in output
    for task in ("ps 0", "ps 1"):
        assert f"[{task}] serves\n" in output
    assert "ending ps 0, ps 1 (SIGTERM)" in output
    job.assert_nothing_left()


def test_run_quiet_and_verbose(job):
    script = job.script("print('hello')")
    assert job.run("--quiet", script)[1] == "[worker 0] hello\n"
    assert "2 workers share this machine's CPUs" in job.run("--workers", 2, script)[1]
    assert "tf-config: worker 0 started as process " in job.run("--verbose", script)[1]


@pytest.mark.parametrize(
    ("program", "options", "gpus", "is_compared"),
    [
        ("train.py", {"workers": 2}, 0, True),
        ("train.py", {"workers": 1, "chief": True, "ps": 1}, 0, True),
        ("train.py", {"workers": 1, "ps": 2}, 0, False),
        ("train.py", {"workers": 2}, 2, False),
        ("train.py", {"workers": 2}, None, False),
        ("true", {"workers": 2}, 0, False),
    ],
)
def test_workers_on_the_cpus_of_one_machine_are_compared_with_one_process(
    program, options, gpus, is_compared, monkeypatch
):
    monkeypatch.setattr(run, "gpus", lambda: gpus)
    assert run.shares_cpus(JobSpec(Roles(**options), [program])) == is_compared


def test_workers_on_other_hosts_are_not(monkeypatch):
    monkeypatch.setattr(run, "gpus", lambda: 0)
    assert not run.shares_cpus(JobSpec(Roles(2), ["train.py"], hosts=[Host("a", 2)]))


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("keras-strategies ")


def test_tasks_of_nodes_are_workers(capsys):
    words = ["render", "slurm", "--nodes", "2", "--ntasks-per-node", "4", "--ps", "1", "train.py"]
    assert main(words) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --ntasks=8" in script and "#SBATCH --nodes=2" in script
