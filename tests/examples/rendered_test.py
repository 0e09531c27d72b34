"""The batch script and the manifests are what tf-config renders by the commands of the page."""

import re
import shlex
import subprocess

import pytest

from tests.support.documents import ROOT, blocks
from tf_config.cli import main

TEXT = "\n".join(block.text for block in blocks(ROOT / "docs" / "examples.md", "bash"))
COMMANDS = re.findall(r"^tf-config (render .*)", TEXT.replace("\\\n", ""), re.M)


def file_of(command):
    words = shlex.split(command)
    return words[words.index("-o") + 1]


def test_every_file_has_its_command():
    files = {*ROOT.glob("examples/slurm/*"), *ROOT.glob("examples/kubernetes/*.yaml")}
    assert {ROOT / file_of(command) for command in COMMANDS} == files
    assert len(files) == 3


@pytest.mark.parametrize("command", COMMANDS, ids=file_of)
def test_a_file_is_what_its_command_writes(command, tmp_path):
    words, name = shlex.split(command), file_of(command)
    words[words.index("-o") + 1] = str(tmp_path / "new")
    assert main(words) == 0
    assert (ROOT / name).read_text() == (tmp_path / "new").read_text()
    assert (ROOT / words[words.index("--") + 1]).exists()


def test_the_shell_understands_the_batch_script():
    subprocess.run(["bash", "-n", ROOT / "examples" / "slurm" / "digits.sbatch"], check=True)
