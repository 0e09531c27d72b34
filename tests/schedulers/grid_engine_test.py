"""Grid Engine itself: a master and two hosts on this machine, for the time of the tests.

The hosts are network namespaces, with host names of their own.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.two_hosts import TwoHosts
from tests.support.two_hosts import missing as missing_hosts
from tf_config.builder import free_ports

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALLED, BINARIES = Path("/var/lib/gridengine"), Path("/usr/lib/gridengine")
SHARED = Path("/usr/share/gridengine")
PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qrsh", "qconf")

BOOTSTRAP = """
admin_user none
default_domain none
ignore_fqdn true
spooling_method berkeleydb
spooling_lib libspoolb
spooling_params {directory}/database
binary_path /usr/sbin
qmaster_spool_dir {directory}/master
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
PARALLEL_ENVIRONMENT = """
pe_name tf
slots 99
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule 1
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
LIMITS = ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")
NOTHING = (
    "ckpt_list prolog epilog starter_method suspend_method resume_method terminate_method "
    "owner_list user_lists xuser_lists subordinate_list complex_values projects xprojects "
    "calendar load_thresholds suspend_thresholds"
).split()
QUEUE = "\n".join(
    [
        "qname all.q",
        "hostlist {hosts}",
        "seq_no 0",
        "nsuspend 1",
        "suspend_interval 00:05:00",
        "priority 0",
        "processors UNDEFINED",
        "min_cpu_interval 00:05:00",
        "qtype BATCH INTERACTIVE",
        "pe_list tf",
        "rerun FALSE",
        "slots 4",
        "tmpdir /tmp",
        "shell /bin/bash",
        "shell_start_mode unix_behavior",
        "notify 00:00:60",
        "initial_state default",
        *(f"{name} NONE" for name in NOTHING),
        *(f"{kind}_{limit} INFINITY" for limit in LIMITS for kind in "sh"),
    ]
)


def missing():
    """Returns why Grid Engine cannot run here; None if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        packages = "gridengine-master, gridengine-exec and gridengine-client"
        return f"not installed: {', '.join(absent)} (Debian's packages {packages})"
    return missing_hosts()


class GridEngine:
    """A cluster of two hosts.

    Args:
      hosts: the hosts.
      directory: a new one.
    """

    def __init__(self, hosts, directory):
        self._hosts, self.directory = hosts, directory
        self.names = hosts.names
        ports = free_ports(2)
        self._environ = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LANG")
                         if name in os.environ}  # fmt: skip
        self._environ |= {
            "SGE_ROOT": str(directory / "root"),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(ports[0]),
            "SGE_EXECD_PORT": str(ports[1]),
            "SGE_ND": "1",  # daemons stay in the foreground
            "PYTHONPATH": str(ROOT),
        }
        self._daemons = []

    def start(self):
        """Starts the daemons, as Debian's package does, and configures a queue."""
        root, first = self.directory / "root", self.names[0]
        common = root / "default" / "common"
        spool = [self.directory / name for name in ("database", "master/job_scripts", "execution")]
        for path in (common, *spool):
            path.mkdir(parents=True)
        for name in ("util", "bin", "lib", "utilbin"):
            (root / name).symlink_to((INSTALLED / name).resolve())
        (common / "act_qmaster").write_text(f"{first}\n")
        (common / "bootstrap").write_text(BOOTSTRAP.format(directory=self.directory).lstrip())
        configuration = (SHARED / "default-configuration").read_text()
        for old, new in [
            ("/var/spool/gridengine/execd", str(self.directory / "execution")),
            ("min_uid                1000", "min_uid 0"),
            ("min_gid                1000", "min_gid 0"),
        ]:
            assert old in configuration
            configuration = configuration.replace(old, new)
        self._run(BINARIES / "spoolinit", "berkeleydb", "libspoolb", spool[0], "init")
        resources = SHARED / "util" / "resources"
        defaults = BINARIES / "spooldefaults"
        self._run(defaults, "configuration", self._file("configuration", configuration))
        self._run(defaults, "complexes", resources / "centry")
        self._run(defaults, "usersets", resources / "usersets")
        self._run(defaults, "managers", "root")
        self._serve(0, "sge_qmaster")
        self._wait_for(lambda: self._run("qconf", "-sh", check=False).returncode == 0)
        self._run("qconf", "-ah", self.names[1])
        self._run("qconf", "-as", first)
        for host in range(2):
            self._serve(host, "sge_execd")
        self._run("qconf", "-Ap", self._file("environment", PARALLEL_ENVIRONMENT.lstrip()))
        queue = QUEUE.format(hosts=" ".join(self.names))
        self._run("qconf", "-Aq", self._file("queue", f"{queue}\n"))
        self._wait_for(lambda: self._run("qstat", "-f").stdout.count("lx-amd64      \n") == 2)

    def close(self):
        """Ends the daemons."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:  # sge_qmaster sometimes waits for longer
                daemon.kill()
                daemon.wait()

    def submit(self, name, *command):
        """Runs a job on both hosts to its end; returns its exit code and its output."""
        output = self.directory / f"{name}.out"
        script = self._file(f"{name}.sh", f"#!/bin/bash\nexec {' '.join(map(str, command))}\n")
        options = ["-sync", "y", "-cwd", "-V", "-pe", "tf", "2", "-j", "y", "-o", output]
        done = self._run("qsub", *options, script, check=False)
        assert "Your job" in done.stdout, done.stdout + done.stderr
        return done.returncode, output.read_text()

    def start_job(self, name, *command):
        """Starts a job on both hosts; returns its number."""
        script = self._file(f"{name}.sh", f"#!/bin/bash\n{' '.join(map(str, command))}\n")
        options = ["-terse", "-cwd", "-V", "-pe", "tf", "2", "-j", "y", "-o", f"{name}.out"]
        return self._run("qsub", *options, script).stdout.strip()

    def delete_job(self, number):
        """Ends a job."""
        self._run("qdel", number)

    def _on(self, host):
        set_name = 'hostname "$0" && exec "$@"'
        return [*self._hosts.on(host), "unshare", "--uts", "sh", "-c", set_name, self.names[host]]

    def _serve(self, host, daemon):
        with (self.directory / f"{daemon}-{host}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    [*self._on(host), daemon], env=self._environ, stdout=log, stderr=log
                )
            )

    def _run(self, *command, check=True):
        words = [*self._on(0), *map(str, command)]
        options = {"capture_output": True, "text": True, "timeout": 300, "check": False}
        done = subprocess.run(words, env=self._environ, cwd=self.directory, **options)
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
        return done

    def _file(self, name, text):
        path = self.directory / name
        path.write_text(text)
        return path

    def _wait_for(self, is_done):
        deadline = time.monotonic() + 60
        while not is_done():
            if time.monotonic() > deadline:
                logs = [path.read_text() for path in self.directory.glob("*.log")]
                pytest.fail("Grid Engine did not start:\n" + "\n".join(logs))
            time.sleep(0.3)


@pytest.fixture(scope="module")
def grid_engine(tmp_path_factory):
    """A cluster of two hosts that know each other by name."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with TwoHosts.made() as hosts:
        known = "\n".join(map(" ".join, zip(hosts.addresses, hosts.names, strict=True)))
        for name in hosts.names:
            # `ip netns exec` puts what is there in the place of the files in /etc.
            directory = Path("/etc/netns") / name
            directory.mkdir(parents=True)
            (directory / "hosts").write_text(f"127.0.0.1 localhost\n{known}\n")
        cluster = GridEngine(hosts, tmp_path_factory.mktemp("grid_engine"))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()
            for name in hosts.names:
                shutil.rmtree(Path("/etc/netns") / name)


RUN = (sys.executable, "-m", "tf_config", "run", "--allocation")
WHO = """
import os, socket, sys
from tf_config import TFConfig
print(TFConfig.from_env().task, "on", socket.gethostname(), "in", os.getcwd(), flush=True)
sys.exit(int(sys.argv[1]) if TFConfig.from_env().task.index == 1 else 0)
"""


@pytest.fixture
def who(grid_engine):
    """A script that prints which task it is; worker 1 exits with the code in its argument."""
    path = grid_engine.directory / "who.py"
    path.write_text(WHO)
    return path


@pytest.mark.processes
def test_a_job_starts_its_tasks_on_all_of_its_hosts(grid_engine, who):
    code, output = grid_engine.submit("who", *RUN, who, 0)
    assert code == 0, output
    lines = output.splitlines()
    # The scheduler chooses which host is the first one.
    orders = [grid_engine.names, grid_engine.names[::-1]]
    assert any(
        all(
            f"[worker {worker}] worker {worker} on {name} in {grid_engine.directory}" in lines
            for worker, name in enumerate(names)
        )
        for names in orders
    ), output


@pytest.mark.processes
def test_a_task_that_fails_on_another_host_is_named(grid_engine, who):
    code, output = grid_engine.submit("fails", *RUN, who, 7)
    assert code == 7, output
    assert "tf-config: worker 1 failed with exit code 7" in output


ENDLESS = """
import os, time
from tf_config import TFConfig
index = TFConfig.from_env().task.index
open(f"{index}.new", "w").write(str(os.getpid()))
os.rename(f"{index}.new", f"{index}.pid")
time.sleep(600)
"""


@pytest.mark.processes
def test_a_job_that_is_deleted_leaves_no_task_on_any_host(grid_engine, job):
    directory = grid_engine.directory
    (directory / "endless.py").write_text(ENDLESS)
    number = grid_engine.start_job("endless", *RUN, directory / "endless.py")
    files = [directory / f"{index}.pid" for index in range(2)]
    job.wait_for(lambda: all(file.exists() for file in files), 60)
    pids = [int(file.read_text()) for file in files]
    assert all(map(psutil.pid_exists, pids))
    grid_engine.delete_job(number)
    job.wait_for(lambda: not any(map(psutil.pid_exists, pids)), 60)


@pytest.mark.slow
@pytest.mark.processes
def test_a_job_trains_one_model_on_all_of_its_hosts(grid_engine):
    code, output = grid_engine.submit("train", *RUN, ROOT / "examples" / "digits.py", "--epochs", 1)
    assert code == 0, output
    assert "weights: equal to the bit on all 2 workers" in output
