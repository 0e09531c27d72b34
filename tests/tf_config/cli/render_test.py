"""`tf-config render`: what the options become, and where the text goes."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tf_config.cli import main

ROOT = Path(__file__).resolve().parents[3]
SLURM = ["render", "slurm"]
KUBERNETES = ["render", "kubernetes", "--name", "train", "--image", "image"]
PROGRAM = ["--", "train.py", "--epochs", "3"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The directory of a Python with this package's command beside it."""
    (tmp_path / "tf-config").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def test_the_options_of_slurm(own, capsys):
    options = [
        "--workers", "3", "--ps", "1", "--chief", "--name", "digits", "--nodes", "2",
        "--time", "1:00:00", "--partition", "gpu", "--cpus-per-worker", "4",
        "--gpus-per-worker", "1", "--memory", "16G", "--start-timeout", "600",
    ]  # fmt: skip
    assert main([*SLURM, *options, *PROGRAM]) == 0
    assert (
        capsys.readouterr().out.replace(str(own), "/own")
        == """#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --output=%x-%j.log
#SBATCH --ntasks=5
#SBATCH --nodes=2
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-task=1
#SBATCH --mem=16G
#SBATCH --time=1:00:00
#SBATCH --partition=gpu

set -euo pipefail

srun --kill-on-bad-exit=1 --label --cpus-per-task=4 /own/tf-config exec --from slurm --ps 1 \
--chief --start-timeout 600 --threads-per-worker 4 -- train.py --epochs 3
"""
    )


def test_lines_of_setup_decide_which_tf_config_it_is(own, capsys):
    assert main([*SLURM, "--setup", "source .venv/bin/activate", *PROGRAM]) == 0
    assert " tf-config exec --from slurm " in capsys.readouterr().out


def test_a_source_tree_without_a_command_is_run_by_its_python(own, capsys):
    (own / "tf-config").unlink()
    assert main([*SLURM, *PROGRAM]) == 0
    assert f" {own / 'python'} -m tf_config exec --from slurm " in capsys.readouterr().out


def test_the_options_of_kubernetes(capsys):
    options = [
        "--workers", "3", "--ps", "1", "--namespace", "team", "--cpus-per-worker", "4",
        "--gpus-per-worker", "2", "--memory", "4Gi", "--port", "3333",
        "--threads-per-worker", "8", "--start-timeout", "600",
    ]  # fmt: skip
    assert main([*KUBERNETES, *options, *PROGRAM]) == 0
    service, _, worker, _ = yaml.safe_load_all(capsys.readouterr().out)
    assert service["metadata"]["namespace"] == "team"
    assert service["spec"]["ports"][0]["port"] == 3333
    assert worker["spec"]["completions"] == 3
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "image"
    assert container["resources"]["limits"] == {
        "cpu": "4",
        "memory": "4Gi",
        "nvidia.com/gpu": "2",
    }
    assert container["command"] == [
        "tf-config", "exec", "--from", "kubernetes", "--start-timeout", "600",
        "--threads-per-worker", "8", "--", "train.py", "--epochs", "3",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [SLURM, KUBERNETES])
def test_a_program_may_look_like_an_option_or_follow_without_dashes(kind, capsys):
    assert main([*kind, "--workers", "2", "train.py", "--workers", "5", "--", "-o"]) == 0
    text = capsys.readouterr().out
    assert "train.py" in text
    assert main([*kind, "--workers", "2", "--", "train.py", "--workers", "5", "--", "-o"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("kind", [SLURM, KUBERNETES])
def test_a_new_file_gets_the_same_text(kind, tmp_path, capsys):
    path = tmp_path / "job"
    assert main([*kind, "--", "train.py", "é"]) == 0
    text = capsys.readouterr().out
    assert main([*kind, "-o", str(path), "--", "train.py", "é"]) == 0
    assert path.read_text(encoding="utf-8") == text
    assert capsys.readouterr().out == ""
    assert main([*kind, "-o", "-", "--", "train.py", "é"]) == 0
    assert capsys.readouterr().out == text


def test_an_existing_file_is_never_overwritten(tmp_path, capsys):
    path = tmp_path / "job"
    path.write_text("mine")
    assert main([*SLURM, "-o", str(path), *PROGRAM]) == 2
    assert path.read_text() == "mine"
    assert "which exists. Remove it, or choose another name." in capsys.readouterr().err


def test_a_wrong_job_makes_no_file(tmp_path):
    assert main([*SLURM, "--time", "x", "-o", str(tmp_path / "job"), *PROGRAM]) == 2
    assert not (tmp_path / "job").exists()


def test_a_file_that_cannot_be_written_whole_is_not_left(tmp_path):
    path = tmp_path / "job"
    result = subprocess.run(
        [sys.executable, "-m", "tf_config", *SLURM, "-o", str(path), *PROGRAM],
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "(File too large). Choose a directory that you can write to." in result.stderr
    assert result.stderr.count("\n") == 1
    assert not path.exists()


def test_the_text_is_utf_8_whatever_the_terminal(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "tf_config", *SLURM, "--", "train.py", "é"],
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
        capture_output=True,
    )
    assert result.returncode == 0
    assert result.stdout.decode("utf-8").endswith("train.py 'é'\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["render"], "required: KIND"),
        (["render", "lsf"], "invalid choice: 'lsf'"),
        (SLURM, "required: program"),
        ([*SLURM, "--workers", "0", *PROGRAM], "at least one task that trains"),
        ([*SLURM, "--cpus-per-worker", "0", *PROGRAM], "number must be 1 or more, received '0'"),
        ([*SLURM, "--nodes", "2", *PROGRAM], "must be from 1 to 1. Received: 2"),
        ([*SLURM, "-o", "/none/job", *PROGRAM], "'/none/job' (No such file or directory)"),
        (["render", "kubernetes", *PROGRAM], "required: --name, --image"),
        ([*KUBERNETES, "--port", "0", *PROGRAM], "A port must be from 1 to 65535"),
        ([*KUBERNETES, "--time", "1", *PROGRAM], "unrecognized arguments: --time"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tf-config: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
