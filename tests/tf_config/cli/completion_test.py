"""`tf-config completion`: the scripts, in the shells that they are for."""

import shlex
import shutil
import subprocess

import pytest

from tf_config.cli import main
from tf_config.environments import ENVIRONMENTS

# Does what bash does when the key is pressed: calls the function that `complete` named.
PRESS_TAB = """
source {script}
function=$(complete -p tf-config | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
"$function" tf-config
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(tmp_path, capsys):
    """Writes the script for a shell to a file."""

    def write(shell):
        assert main(["completion", shell]) == 0
        path = tmp_path / f"completion.{shell}"
        path.write_text(capsys.readouterr().out)
        return path

    return write


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ru"], ["run"]),
        (["c"], ["check", "completion"]),
        (["run", "--wor"], ["--workers"]),
        (["run", "--workers", "2", "--log-dir", "d"], ["data"]),
        (["run", "--workers", "2", "t"], ["train.py"]),
        (["run", "train.py", "d"], ["data"]),
        (["show", "--from", "sl"], ["slurm"]),
        (["exec", "--from", "tf"], ["tf_config"]),
        (["check", "--file", "tr"], ["train.py"]),
        (["split", "tr"], ["train.py"]),
        (["split", "train.py", "--format", ""], ["text", "tfrecord"]),
        (["split", "train.py", "--output-dir", "t"], []),
        (["completion", ""], ["bash", "zsh"]),
    ],
)
def test_bash_completes(words, offered, script, tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    program = PRESS_TAB.format(
        script=shlex.quote(str(script("bash"))), words=shlex.join(["tf-config", *words])
    )
    result = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.stderr == ""
    assert sorted(result.stdout.split()) == offered


def test_the_example_of_the_help_works_in_bash(script, capsys):
    with pytest.raises(SystemExit):
        main(["completion", "--help"])
    example = 'eval "$(tf-config completion bash)"'
    assert example in capsys.readouterr().out
    program = f"tf-config() {{ cat {shlex.quote(str(script('bash')))}; }}\n{example}\n"
    result = subprocess.run(
        ["bash", "--norc", "-c", program + "complete -p tf-config"], capture_output=True, text=True
    )
    assert result.stdout.rstrip().endswith(" tf-config")


def test_the_script_for_zsh(script):
    path = script("zsh")
    text = path.read_text()
    assert text.startswith("#compdef tf-config\n")
    assert f"({' '.join(ENVIRONMENTS)})" in text
    assert '"--format[' in text and "(text tfrecord)" in text
    assert "_files -/" in text
    if shutil.which("zsh"):
        assert subprocess.run(["zsh", "-n", str(path)]).returncode == 0


def test_another_shell_is_one_line(capsys):
    assert main(["completion", "fish"]) == 2
    error = capsys.readouterr().err
    assert "invalid choice: 'fish'" in error
    assert error.count("\n") == 1
