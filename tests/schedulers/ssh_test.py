"""Two hosts on one machine: network namespaces with names and addresses of their own, and sshd."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.support.elastic_training import ElasticTraining
from tests.support.restarted_tasks import RestartedTasks, server_faults_in, worker_faults_in

PORT = 2222
WHO = (
    "import json, os, socket, sys, time\n"
    "config = json.loads(os.environ['TF_CONFIG'])\n"
    "me = config['task']['index']\n"
    "print('here is', socket.gethostname(), config['cluster']['worker'][me], sys.argv[1:],\n"
    "      os.environ.get('FOO'), os.environ['KERAS_STRATEGIES_RESTARTS'])\n"
    "open(f'ready-{me}', 'w').close()\n"
)
TRAIN = """
import keras
import numpy as np
import strategies

strategy = strategies.from_tf_config()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones([12, 2]), np.ones([12, 1]), verbose=0)
strategies.verify_equal(strategy, model.variables)
strategy.print("equal on all", strategy.num_replicas_in_sync)
"""


def lines_of(log):
    """Returns what WHO has printed; a login script may print as well, as pyenv's does sometimes."""
    return [line for line in log.read_text().splitlines() if line.startswith("here is")]


def missing():
    """Returns why two hosts cannot be made here, None if they can."""
    absent = [name for name in ("ssh", "ssh-keygen", "ip", "unshare") if not shutil.which(name)]
    if not Path("/usr/sbin/sshd").exists():
        absent.append("sshd")
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: openssh-server, iproute2)"
    if subprocess.run(["ip", "netns", "add", "ks-try"], capture_output=True).returncode != 0:
        return "network namespaces cannot be made here; that takes root and a kernel that has them"
    subprocess.run(["ip", "netns", "delete", "ks-try"], check=True)
    return None


class Network:
    """A bridge, and hosts at it that sshd listens on."""

    def __init__(self, directory):
        self.directory = directory
        self.names = [f"ks{os.getpid()}{letter}" for letter in "ab"]
        # A net of its own, for another run of these tests may go on or have been cut short.
        self._net = f"10.231.{os.getpid() % 255}"
        self.addresses = [f"{self._net}.11", f"{self._net}.12"]
        self.nobody = f"{self._net}.13"
        self._bridge = f"ks{os.getpid()}"
        self._sshd = []

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True)

    def start(self):
        for name in ("key", "host"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.directory / name]
            subprocess.run(key, check=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        self.ip("link", "add", self._bridge, "type", "bridge")
        self.ip("address", "add", f"{self._net}.1/24", "dev", self._bridge)
        self.ip("link", "set", self._bridge, "up")
        for name, address in zip(self.names, self.addresses, strict=True):
            self.ip("netns", "add", name)
            self.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            self.ip("link", "set", name, "master", self._bridge, "up")
            self.ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")
            self.ip("-n", name, "link", "set", "lo", "up")
            options = f"-p {PORT} -h {self.directory}/host -o AuthorizedKeysFile="
            options += f"{self.directory}/key.pub -o PidFile=none -o StrictModes=no -o UsePAM=no"
            serve = f"hostname {name}; exec /usr/sbin/sshd -D -e {options}"
            command = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", serve]
            log = (self.directory / f"{name}.log").open("wb")
            self._sshd.append(subprocess.Popen(command, stdout=log, stderr=log))
            log.close()
        for address in self.addresses:
            wait_until_listening(address)

    def stop(self):
        for process in self._sshd:
            process.kill()
            process.wait()
        for name in self.names:
            self.kill(name)
            subprocess.run(["ip", "netns", "delete", name])
        subprocess.run(["ip", "link", "delete", self._bridge])

    def kill(self, name):
        """Kills all processes of a host but the sshd that listens."""
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
        for pid in set(map(int, pids.split())) - {process.pid for process in self._sshd}:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)

    @property
    def arguments(self):
        """What `tf-config run` is told to use both hosts, each for one worker."""
        return ["--hosts", ",".join(self.addresses), "--ssh", self.ssh]

    @property
    def ssh(self):
        known = f"-o UserKnownHostsFile={self.directory}/known -o StrictHostKeyChecking=accept-new"
        return f"ssh -F none -p {PORT} -i {self.directory}/key {known}"


def wait_until_listening(address):
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection((address, PORT), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"sshd at {address} did not start"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    network = Network(tmp_path_factory.mktemp("ssh"))
    try:
        network.start()
        yield network
    finally:
        network.stop()


def run_until_ready(job, network, script, *options):
    process = job.start(*network.arguments, *options, job.script(WHO + script))
    for worker in (0, 1):
        job.wait_for(lambda w=worker: (job.directory / f"ready-{w}").exists(), 20)
    return process


@pytest.mark.slow
def test_one_command_trains_one_model_on_both_hosts(job, network):
    first, second = network.addresses
    arguments = ["--hosts", f"{first}:2,{second}", "--ssh", network.ssh, "--start-timeout", 60]
    code, output = job.run(*arguments, job.script(TRAIN))
    assert code == 0, output
    assert "[worker 0] equal on all 3" in output
    job.assert_nothing_left()


@pytest.mark.slow
def test_a_worker_joins_a_job_on_both_hosts(job, network):
    """The launcher is on neither of them, so all that it reads of the workers crosses the network.

    Rows on two servers count how often each example was trained on.
    """
    stops, epochs = ("stop-0-1-2", "stop-1-1-3"), 5
    arguments = [*network.arguments, "--env", f"PYTHONPATH={job.environ['PYTHONPATH']}"]
    training = ElasticTraining(
        job, "half_async", epochs, "rows", stops=stops, servers=2, arguments=arguments
    )
    for rank, step in ((0, 2), (1, 3)):
        training.wait_for(rank, 1, step)
    variables = ("PYTHONPATH", "KERAS_STRATEGIES_SECRET", "KERAS_STRATEGIES_TEST")
    settings = [f"{name}={job.environ[name]}" for name in variables]
    there = [*network.ssh.split(), network.addresses[1], "cd", str(job.directory), "&&"]
    joined = training.join([*there, "env", *settings])
    training.wait_for(2, 1, 0)
    training.touch("go-1-2", "go-1-3")
    counts, output = training.finish()
    code, text = job.finish(joined, 60)
    assert code == 0 and "finished" in text, text
    assert " joins the job, on " in output
    assert training.workers_by_epoch(0)[1] == [{2}, {2}, *[{3}] * (epochs - 2)]
    assert set(counts) == {epochs}
    job.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["server", "worker"])
def test_a_lost_task_is_restarted_alone_on_its_host(job, network, victim):
    """With the address that it had, so that the others find it again."""
    settings = {**job.environ, "TMPDIR": str(job.directory)}
    names = ("PYTHONPATH", "TMPDIR", "KERAS_STRATEGIES_TEST")
    arguments = [word for name in names for word in ("--env", f"{name}={settings[name]}")]
    training = RestartedTasks(
        job, "half_async", servers=2, restarts=2, arguments=[*network.arguments, *arguments]
    )
    training.wait_until_saved()
    chance = random.Random(0)
    for _ in range(2):
        if victim == "server":
            training.kill_server(chance)
        else:
            training.kill_worker(chance)
    code, output = training.finish()
    assert code == 0, output
    if victim == "server":
        assert training.starts() == [1, 1]
        assert not server_faults_in(output, servers=2, kills=2)
    else:
        assert not worker_faults_in(output, training)
    job.assert_nothing_left()


def test_each_task_is_on_its_host_with_its_address_arguments_and_variables(job, network):
    script = job.script(WHO)
    extra = ["--env", "FOO=b c", "--ps", 1, "--log-dir", "logs"]
    code, output = job.run(*network.arguments, *extra, script, "x", "y z")
    assert code == 0, output
    for worker, (name, address) in enumerate(zip(network.names, network.addresses, strict=True)):
        line = f"[worker {worker}] here is {name} {address}:"
        (found,) = [found for found in output.splitlines() if found.startswith(line)]
        assert found.endswith(" ['x', 'y z'] b c 0")
        assert lines_of(job.directory / f"logs/worker-{worker}.log") == [found[11:]]


def test_a_host_that_is_killed_ends_the_job_and_is_named(job, network):
    process = run_until_ready(job, network, "time.sleep(60)")
    start = time.monotonic()
    network.kill(network.names[1])
    output, _ = process.communicate(timeout=20)
    assert time.monotonic() - start < 10
    assert process.returncode == 255
    lost = f"or the connection to {network.addresses[1]} was lost"
    assert f"tf-config: worker 1 failed first, with exit code 255, {lost}" in output
    job.assert_nothing_left()


@pytest.mark.slow
def test_a_host_that_falls_silent_ends_the_job_on_both_sides(job, network):
    process = run_until_ready(job, network, "time.sleep(600)")
    network.ip("link", "set", network.names[1], "down")
    try:
        output, _ = process.communicate(timeout=40)
        assert f"the connection to {network.addresses[1]} was lost" in output
        job.assert_nothing_left(within=45)
    finally:
        network.ip("link", "set", network.names[1], "up")


def test_a_launcher_that_is_killed_leaves_nothing_on_any_host(job, network):
    process = run_until_ready(job, network, "time.sleep(60)")
    process.kill()
    process.communicate(timeout=20)
    job.assert_nothing_left(within=10)


def test_ctrl_c_reaches_all_hosts(job, network):
    process = run_until_ready(job, network, "time.sleep(60)", "--log-dir", "logs")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    for worker in (0, 1):
        assert "KeyboardInterrupt" in (job.directory / f"logs/worker-{worker}.log").read_text()
    assert "KeyboardInterrupt" not in output
    job.assert_nothing_left()


def test_after_a_failure_all_hosts_start_again_on_new_ports(job, network):
    script = job.script(WHO + "sys.exit(me and config and os.environ[NAME] < '1')\n".replace(
        "NAME", "'KERAS_STRATEGIES_RESTARTS'"))  # fmt: skip
    code, output = job.run(*network.arguments, "--max-restarts", 2, "--log-dir", "logs", script)
    assert code == 0, output
    assert "restart 1 of 2" in output
    lines = lines_of(job.directory / "logs/worker-1.log")
    assert [line.split()[-1] for line in lines] == ["0", "1"]
    assert len({line.split()[3] for line in lines}) == 2


def test_a_host_that_cannot_be_reached_is_one_line_and_starts_nothing(job, network):
    hosts = ["--hosts", f"{network.addresses[0]},{network.nobody}", "--ssh", network.ssh]
    hosts[-1] += " -o ConnectTimeout=2"
    code, output = job.run(*hosts, job.script(WHO))
    assert code == 2
    assert output.startswith("tf-config: error: Each host must be reachable by ssh without a ")
    assert f"Received: {network.nobody}: 'ssh: connect to host {network.nobody} port 2222" in output
    assert output.count("\n") == 1
    assert not (job.directory / "ready-0").exists()


def test_an_interface_that_a_host_has_not_is_named(job, network):
    code, output = job.run(*network.arguments, "--interface", "eth7", job.script(WHO))
    assert code == 2
    assert f"Received: 'eth7'; {network.addresses[0]} has lo, eth0" in output


def test_a_dry_run_says_what_would_be_started_where(job, network):
    script = job.script(WHO)
    code, output = job.run(*network.arguments, "--port", 7000, "--dry-run", script, "a b")
    assert code == 0
    assert not (job.directory / "ready-0").exists()
    note, *lines = output.splitlines()
    assert "hosts are not queried" in note
    for worker, (line, address) in enumerate(zip(lines, network.addresses, strict=True)):
        assert line.startswith(f"worker {worker} on {address}: cd {job.directory} && ")
        assert f'"worker": ["{network.addresses[0]}:7000", "{network.addresses[1]}:7000"]' in line
        assert line.endswith(f"{script} 'a b'")
