"""The page of metrics, read as Prometheus reads it."""

import contextlib
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.support.metrics_page import fetch, key
from tf_config import ClusterConfigError, Task
from tf_config.builder import free_ports
from tf_config.cli import main
from tf_config.launcher.metrics import METRICS, PREFIX, MetricsPage, TaskMetrics
from tf_config.launcher.progress_file import Report, Sample

pytest.importorskip("prometheus_client")

ROOT = Path(__file__).parents[3]
FIRST, SECOND = Task("worker", 0), Task("worker", 1)
# A task that reports numbers once a page is requested, and ends when it has been read.
REPORTS = """
import os, sys, time
from tf_config.launcher.progress_file import Report, Sample, file_of, write_report

assert os.environ["KERAS_STRATEGIES_METRICS"] == "1"
samples = [Sample("steps_total", 7), Sample("queue_depth", 2, ("updates",))]
while not os.path.exists("read"):
    write_report(file_of(), Report(time.time(), samples))
    time.sleep(0.05)
"""


@contextlib.contextmanager
def page_of(*tasks, restarts=0):
    """Yields a function that fetches the page of these tasks."""
    with contextlib.closing(MetricsPage("127.0.0.1", 0)) as page:
        page.show(lambda: tasks, lambda: restarts)
        page.start()
        yield lambda: fetch(page.server_address[1])


def test_each_number_has_the_labels_of_its_task():
    samples = [Sample("steps_total", 12), Sample("embedding_rows", 5, ("users",))]
    tasks = [
        TaskMetrics(FIRST, 1 << 20, Report(time.time(), samples)),
        TaskMetrics(SECOND, 0, None),
        TaskMetrics(Task("ps", 0), 1 << 10, None),
    ]
    with page_of(*tasks, restarts=2) as fetched:
        values, families = fetched()
    assert values.pop(key("report_age_seconds", FIRST)) < 60
    assert values == {
        key("steps_total", FIRST): 12,
        key("embedding_rows", FIRST, table="users"): 5,
        key("resident_memory_bytes", FIRST): 1 << 20,
        key("resident_memory_bytes", Task("ps", 0)): 1 << 10,
        ("restarts_total",): 2,
    }
    kinds = {family.name.removeprefix(PREFIX): family.type for family in families}
    assert kinds["steps"] == "counter" and kinds["embedding_rows"] == "gauge"
    assert all(family.documentation for family in families)


def test_the_age_of_a_checkpoint_grows_while_its_worker_says_nothing():
    samples = [Sample("checkpoint_time", time.time() - 100, ("here",))]
    with page_of(TaskMetrics(FIRST, 0, Report(time.time() - 50, samples))) as fetched:
        values, _ = fetched()
    assert 100 <= values[key("checkpoint_age_seconds", FIRST, directory="here")] < 160
    assert 50 <= values[key("report_age_seconds", FIRST)] < 110


def test_what_the_page_does_not_know_is_left_out():
    samples = [Sample("nonsense", 1), Sample("steps_total", 1, ("a",)), Sample("queue_depth", 1)]
    samples.append(Sample("step_seconds", float("nan")))
    with page_of(TaskMetrics(FIRST, 0, Report(time.time(), samples))) as fetched:
        values, _ = fetched()
    assert {name for name, *_ in values} == {"report_age_seconds", "restarts_total"}


def test_the_documentation_has_every_metric():
    text = (ROOT / "docs/monitoring.md").read_text()
    for name in [*METRICS, "restarts_total"]:
        assert f"`{PREFIX}{name}`" in text, name


@pytest.mark.parametrize("command", ["run", "exec"])
def test_a_port_in_use_is_an_error_before_anything_starts(command, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["localhost:2"]}, "task": {"type": "worker", "index": 0}}',
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = tmp_path / "started"
        assert main([command, "--metrics-port", str(port), "touch", str(started)]) == 2
    error = capsys.readouterr().err
    assert f"Received: port {port} of '127.0.0.1' (Address already in use)" in error
    assert not started.exists()


def test_an_address_of_another_machine_is_an_error():
    with pytest.raises(ClusterConfigError, match="of an address of this machine"):
        MetricsPage("192.0.2.1", 0)


def test_without_the_package_the_option_says_how_to_install_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["run", "--metrics-port", "9100", "true"]) == 2
    assert 'Install it: pip install "keras-strategies[metrics]".' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["run", "--metrics-host", "::", "true"], "--metrics-host requires --metrics-port"),
        (["run", "--metrics-port", "0", "true"], "the port must be from 1 to 65535"),
        (["run", "--env", "KERAS_STRATEGIES_METRICS=1", "true"], "tf-config sets it for each task"),
    ],
)
def test_wrong_options(arguments, error, capsys):
    assert main(arguments) == 2
    assert error in capsys.readouterr().err


def test_exec_within_run_leaves_the_page_to_run(capsys, monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["localhost:2"]}, "task": {"type": "worker", "index": 0}}',
    )
    monkeypatch.setenv("KERAS_STRATEGIES_PROGRESS", "/proc/1/fd/3")
    assert main(["exec", "--metrics-port", "9100", "true"]) == 2
    assert "must be an option of the outermost tf-config command" in capsys.readouterr().err


def until_reported(job, port, tasks):
    """Fetches the page until all tasks have reported; returns it."""
    found = {}

    def is_complete():
        with contextlib.suppress(OSError):
            found.update(fetch(port)[0])
        return all(key("steps_total", task) in found for task in tasks)

    job.wait_for(is_complete, 60)
    (job.directory / "read").touch()
    return found


def test_run_serves_the_numbers_of_all_tasks(job):
    (port,) = free_ports(1, "")
    script = job.script(REPORTS)
    process = job.start("--workers", 2, "--metrics-port", port, script)
    found = until_reported(job, port, [FIRST, SECOND])
    code, output = job.finish(process, 60)
    assert code == 0, output
    for task in (FIRST, SECOND):
        assert found[key("steps_total", task)] == 7
        assert found[key("queue_depth", task, queue="updates")] == 2
        assert found[key("resident_memory_bytes", task)] > 1 << 20
        assert found[key("report_age_seconds", task)] < 60
    assert found[("restarts_total",)] == 0


def test_exec_serves_each_task_of_a_host_on_a_port_of_its_own(job):
    port, _ = range_of_two_ports()
    script = job.script(REPORTS)
    addresses = [f"127.0.0.1:{number}" for number in free_ports(2, "")]
    processes = []
    for index in range(2):
        job.environ["TF_CONFIG"] = (
            f'{{"cluster": {{"worker": ["{addresses[0]}", "{addresses[1]}"]}}, '
            f'"task": {{"type": "worker", "index": {index}}}}}'
        )
        command = [job.python, "-m", "tf_config", "exec", "--metrics-port", str(port), str(script)]
        processes.append(job.popen(command))
    pages = [reported_page(job, port), reported_page(job, port + 1)]
    (job.directory / "read").touch()
    for process in processes:
        code, output = job.finish(process, 60)
        assert code == 0, output
    for task, page in zip((FIRST, SECOND), pages, strict=True):
        assert page[key("steps_total", task)] == 7
        # Each page has its own task only.
        assert all(("task", str(task.index)) in labels for _, *labels in page if labels)
    job.assert_nothing_left()


def reported_page(job, port):
    """Returns a page once its task has reported."""
    page = {}

    def is_reported():
        with contextlib.suppress(OSError):
            page.update(fetch(port)[0])
        return any(name == "steps_total" for name, *_ in page)

    job.wait_for(is_reported, 60)
    return page


def range_of_two_ports():
    while True:
        (port,) = free_ports(1, "")
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port, port + 1


def test_a_restart_is_counted(job):
    (port,) = free_ports(1, "")
    script = job.script(
        "import os, sys\nif os.environ['KERAS_STRATEGIES_RESTARTS'] == '0': sys.exit(3)\n" + REPORTS
    )
    process = job.start("--max-restarts", 1, "--metrics-port", port, script)
    found = until_reported(job, port, [FIRST])
    code, output = job.finish(process, 60)
    assert code == 0, output
    assert found[("restarts_total",)] == 1


def test_the_launcher_imports_no_tensorflow():
    code = (
        "import sys\nfrom tf_config.launcher.metrics import MetricsPage\n"
        "MetricsPage('127.0.0.1', 0).close()\nassert 'tensorflow' not in sys.modules\n"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
