"""What several test files use: real clusters, started by our own launcher."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist import is_xdist_controller
from xdist.workermanage import WorkerController

from tests.support import costs
from tests.support.check_jobs import PROGRAMS, Check, CheckJobs, beside
from tests.support.checks import CHOICE
from tests.support.combinations import mark_others_slow
from tests.support.fork_server import ForkServer
from tests.support.job import HANGING_SECONDS, Job

hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# A check takes a few; a job of many has to end also where other jobs run beside it.
SECONDS_OF_A_CHECK = 60

# TensorFlow's modules and thousands of tests are objects for good. By its usual thresholds Python
# looks through all of them so often that collecting takes a third as long again.
gc.set_threshold(100_000, 50, 100)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Makes the replicas of tests that start no processes, before TensorFlow starts.

    What distributes the tests over processes runs none itself, and imports no TensorFlow.
    """
    if is_xdist_controller(session):
        return
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


_SHARED = pytest.StashKey[ForkServer]()
_FORKED_PYTHON = "forked_python"


def pytest_configure_node(node: WorkerController) -> None:
    """Tells each process of the tests of one fork server, for TensorFlow is imported once so."""
    if _SHARED not in node.config.stash:
        directory = tempfile.TemporaryDirectory(prefix="fork_server_")
        server = node.config.stash[_SHARED] = ForkServer(Path(directory.name))
        node.config.add_cleanup(directory.cleanup)
        node.config.add_cleanup(server.close)
    node.workerinput[_FORKED_PYTHON] = node.config.stash[_SHARED].python


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what starts processes by the fixtures of this file, and puts files with such first.

    Files go to the workers of pytest-xdist in this order; with the long ones at the end, one
    worker would be idle meanwhile.
    """
    mark_others_slow(items)
    for item in items:
        if {"distributions", "job", "slurm"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker("processes")
    marks: dict[Path, set[str]] = {}
    for item in items:
        marks.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    # Those of tf_config wait for timeouts, so others may run beside them.
    items.sort(key=lambda item: (_turn(marks[item.path]), "tf_config" not in item.path.parts))
    gc.collect()
    gc.freeze()


def _turn(marks: set[str]) -> int:
    return 0 if "processes" in marks else 1 if "training" in marks else 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Records what a test costs in this process, and in those that it started and waited for."""
    before = costs.processor_seconds()
    result = yield
    for kind, seconds in costs.processor_seconds().items():
        costs.record(item.nodeid, kind, seconds - before[kind])
    return result


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job in a directory of its own; what is left of it is killed after the test."""
    job = Job(tmp_path)
    yield job
    job.close()


@pytest.fixture(scope="session")
def forked_python(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An executable like `sys.executable`, whose processes have imported TensorFlow already."""
    shared = getattr(request.config, "workerinput", {}).get(_FORKED_PYTHON)
    if shared is not None:
        yield shared
        return
    server = ForkServer(tmp_path_factory.mktemp("fork_server"))
    yield server.python
    server.close()


@pytest.fixture
def forked(job: Job, forked_python: str) -> Job:
    """The test's job, with processes that need not import TensorFlow themselves."""
    job.python = forked_python
    return job


@pytest.fixture
def shell(forked: Job) -> Callable[..., str]:
    """Runs commands in an empty directory, where tf-config and python are forks; the output."""
    programs = forked.directory / "bin"
    programs.mkdir()
    for name, arguments in (("tf-config", "-m tf_config "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {forked.python} {arguments}"$@"\n')
        (programs / name).chmod(0o755)
    forked.environ["PATH"] = f"{programs}:{forked.environ['PATH']}"
    forked.directory = forked.directory / "empty"
    forked.directory.mkdir()

    def run(text: str) -> str:
        process = forked.popen(["bash", "-ec", text])
        code, output = forked.finish(process, timeout=HANGING_SECONDS)
        if code is None:
            pytest.fail(f"Not done after {HANGING_SECONDS} s: {text}\n{output}")
        assert code == 0, output
        return output

    return run


@pytest.fixture(params=["shared_memory", "horovod", "tensorflow"])
def communication(job: Job, request: pytest.FixtureRequest) -> str:
    """What the workers of the job communicate by."""
    job.environ["KERAS_STRATEGIES_COMMUNICATION"] = request.param
    if request.param == "tensorflow":
        job.hide_horovod()
    return request.param


@pytest.fixture(params=["in_memory", "on_servers"])
def exchange(job: Job, request: pytest.FixtureRequest) -> str:
    """Where the workers of synchronous servers exchange values."""
    if request.param == "on_servers":
        job.environ["KERAS_STRATEGIES_COMMUNICATION"] = "tensorflow"
    return request.param


@pytest.fixture
def train(forked: Job) -> Callable[..., str]:
    """Runs a program of tests/distributed on several workers and returns its output.

    It prints "passed" at its end on each of them.
    """

    def run(
        program: str, *arguments: object, workers: int = 2, ps: int = 0, timeout: float = 150
    ) -> str:
        cluster = "--workers", workers, "--ps", ps, "--start-timeout", 60
        code, output = forked.run(*cluster, PROGRAMS / program, *arguments, timeout=timeout)
        if code != 0:
            pytest.fail(f"{program} on {workers} workers ended with {code}:\n{output}")
        for worker in range(workers):
            assert f"[worker {worker}] passed" in output, output
        return output

    return run


@pytest.fixture(scope="session")
def check_jobs() -> CheckJobs:
    """The jobs of this session that ran the checks of programs."""
    return CheckJobs()


@pytest.fixture
def run_check(
    forked: Job, check_jobs: CheckJobs, request: pytest.FixtureRequest
) -> Callable[..., None]:
    """Fails if a check of a program of tests/distributed does not pass on all workers.

    The test has a parameter `check`, one of `checks_of` the program. The first test of several
    that differ in it alone runs the program, with all their checks; the others know by then.
    Programs may write where they are: the directory is new, and all workers' own. With no workers
    the program is one process without a launcher.

    `timeout` is in seconds, for what a job does beside its checks.
    """

    def run(
        check: Check, *arguments: object, workers: int = 2, ps: int = 0, timeout: float = 150
    ) -> None:
        cluster = "--workers", workers, "--ps", ps, "--start-timeout", 60
        key = check.program, tuple(map(str, arguments)), cluster, forked.settings()

        def start(names: list[str]) -> tuple[int | None, str]:
            forked.directory = forked.directory / names[0]
            forked.directory.mkdir()
            forked.environ[CHOICE] = ",".join(names)
            program = map(str, [PROGRAMS / check.program, *arguments])
            process = (
                forked.start(*cluster, *program)
                if workers
                else forked.popen([forked.python, *program])
            )
            return forked.finish(process, timeout + SECONDS_OF_A_CHECK * len(names))

        def names() -> list[str]:
            return [each.name for each in beside(request)]

        failure = check_jobs.failure(key, check.name, names, start, workers)
        if failure is not None:
            pytest.fail(f"{check.program} on {workers} workers: {failure}", pytrace=False)

    return run
