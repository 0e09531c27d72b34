"""The line at the start of a job; that of a real one is in tests/docs_test.py."""

import pytest

from strategies.collectives import LocalCollectives, selection
from strategies.collectives.hierarchical import HierarchicalCollectives
from strategies.collectives.shared_memory import SharedMemoryCollectives
from strategies.compat.tensorflow import CommunicationOptions
from strategies.core.startup_message import announce
from tests.support.fakes import FakeWorker


class Some:
    pass


@pytest.mark.parametrize(
    ("worker", "devices", "expected"),
    [
        (FakeWorker(0), ["/device:CPU:0"], "Some, 2 workers x 1 replica (CPU); why"),
        (FakeWorker(0, 3), ["/device:GPU:0"] * 2, "Some, 3 workers x 2 replicas (GPU); why"),
        (LocalCollectives(), ["/device:CPU:0"], "Some, 1 worker x 1 replica (CPU); why"),
        (FakeWorker(1), ["/device:CPU:0"], None),
    ],
)
def test_the_first_worker_says_what_was_chosen(capsys, worker, devices, expected):
    announce(Some(), worker, devices, "why")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == ("" if expected is None else f"strategies: {expected}\n")


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (SharedMemoryCollectives, "shared memory (all workers are on this host)"),
        (
            HierarchicalCollectives,
            "shared memory on each host, and between hosts Horovod (as requested)",
        ),
        (FakeWorker, "Horovod (as requested)"),
    ],
)
def test_the_choice_has_its_reason(used, expected):
    collectives = used.__new__(used)
    assert selection._describe(collectives, "horovod", "CPU:0", CommunicationOptions()) == expected
