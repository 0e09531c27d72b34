"""The hosts of batch jobs: variables and files in, hosts out."""

import pytest

from tf_config import ClusterConfigError
from tf_config.cli import main
from tf_config.environments.allocation import find_allocation
from tf_config.hosts import Host

EXPECTED = [Host("node1", 2), Host("node2", 1)]
PBS = "node1\nnode1\nnode2\n"
# As Grid Engine 8.1.9 writes it.
GRID_ENGINE = "node1 2 all.q@node1 UNDEFINED\nnode2 1 all.q@node2 UNDEFINED\n"


@pytest.fixture
def file(tmp_path):
    """Returns the path of a new file with a text."""

    def write(text):
        path = tmp_path / "hosts"
        path.write_text(text)
        return str(path)

    return write


def test_lsf_names_hosts_and_slots_in_a_variable():
    found = find_allocation({"LSB_MCPU_HOSTS": "node1 2 node2 1"})
    assert found.hosts == EXPECTED
    assert found.shell == ("blaunch",)


@pytest.mark.parametrize(
    ("variable", "text", "shell"),
    [
        ("PBS_NODEFILE", PBS, ("ssh",)),
        ("PE_HOSTFILE", GRID_ENGINE, ("qrsh", "-inherit")),
    ],
)
def test_others_name_them_in_a_file(file, variable, text, shell):
    found = find_allocation({variable: file(text)})
    assert found.hosts == EXPECTED
    assert found.shell == shell


@pytest.mark.parametrize(
    ("variable", "text"),
    [("PBS_NODEFILE", ""), ("PE_HOSTFILE", "node1\n"), ("PE_HOSTFILE", "\n")],
)
def test_a_file_without_hosts_is_refused(file, variable, text):
    with pytest.raises(ClusterConfigError, match="must name the job's hosts and their slots"):
        find_allocation({variable: file(text)})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "none of these variables is set. Name the hosts with --hosts"),
        ({"SLURM_JOB_ID": "7"}, "a job of Slurm. Start the tasks with 'srun tf-config exec"),
        ({"LSB_MCPU_HOSTS": "node1 2 node2"}, "LSF must name the job's hosts and their slots"),
        ({"LSB_MCPU_HOSTS": "node1 x"}, "Hosts must have the form"),
        ({"PBS_NODEFILE": "/nosuch"}, "PBS_NODEFILE='/nosuch' (No such file or directory)"),
    ],
)
def test_without_a_job_it_says_so(environ, message):
    with pytest.raises(ClusterConfigError) as error:
        find_allocation(environ)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def dry_run(monkeypatch, file, tmp_path, capsys):
    """Runs `tf-config run --allocation` in a job of PBS; returns what it prints."""
    monkeypatch.setenv("PBS_NODEFILE", file(PBS))
    script = tmp_path / "train.py"
    script.touch()

    def run(*options):
        assert main(["run", "--allocation", "--dry-run", *options, str(script)]) == 0
        return [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]

    return run


def test_there_is_a_worker_for_each_slot(dry_run):
    assert dry_run() == ["worker 0 on node1", "worker 1 on node1", "worker 2 on node2"]
    assert dry_run("--workers", "2", "--ps", "1") == [
        "worker 0 on node1",
        "worker 1 on node1",
        "ps 0 on node1",
    ]


def test_hosts_come_from_one_place(dry_run, capsys):
    assert main(["run", "--allocation", "--hosts", "a", "train.py"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err
