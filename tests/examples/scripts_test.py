"""The scripts that start examples by MPI and over ssh."""

import os
import re
import shutil
import subprocess
import sysconfig

import pytest

from tests.support.documents import ROOT
from tests.support.printed import missing

SCRIPTS = sorted(ROOT.glob("examples/*/*.sh"))


def name_of(path):
    return str(path.relative_to(ROOT))


def commands(path):
    """Returns the commands in a script's header, each with the lines that it prints."""
    found = []
    for line in re.findall(r"^#     (.*)", path.read_text(), re.M):
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_the_shell_understands_a_script_and_it_names_an_example(path):
    subprocess.run(["bash", "-n", path], check=True)
    (example,) = re.findall(r"examples/\w+\.py", path.read_text())
    assert (ROOT / example).exists()
    assert all(f"bash {name_of(path)}" in command for command, _ in commands(path))
    assert any(lines for _, lines in commands(path))


def test_the_script_for_ssh_asks_for_hosts():
    environ = {name: value for name, value in os.environ.items() if name != "HOSTS"}
    script = ["bash", ROOT / "examples/ssh/digits.sh"]
    result = subprocess.run(script, env=environ, capture_output=True, text=True)
    assert result.returncode != 0
    assert "HOSTS: must be the machines" in result.stderr


def test_the_script_for_ssh_starts_workers_on_all_hosts(job):
    os.symlink(ROOT / "examples", job.directory / "examples")
    job.environ["HOSTS"] = "node1:2,node2:2"
    job.environ["PATH"] = f"{sysconfig.get_path('scripts')}:{job.environ['PATH']}"
    script = "examples/ssh/digits.sh"
    code, output = job.finish(job.popen(["bash", script, "--ps", "1", "--dry-run"]), timeout=60)
    assert code == 0, output
    tasks = re.findall(r"^(\w+ \d on \w+):", output, re.M)
    workers = [f"worker {index} on node{1 + index // 2}" for index in range(4)]
    assert tasks == [*workers, "ps 0 on node1"]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/mpi/*.sh")), ids=name_of)
def test_mpirun_prints_what_the_header_of_its_script_shows(path, shell, forked):
    if shutil.which("mpirun") is None:
        pytest.skip("not installed: mpirun (Debian: openmpi-bin)")
    (forked.directory / "examples").symlink_to(ROOT / "examples")
    # As root, with more processes than cores; other implementations of MPI ignore these.
    for name in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM"):
        forked.environ[f"OMPI_{name}"] = "1"
    forked.environ["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    command, lines = commands(path)[0]
    output = shell(command)
    assert not missing(lines, output), output
