"""Every strategy and mode on devices that look like GPUs: what runs on them, and the same bits.

The host cannot touch the memory of these devices (device.c), so a value that the package reads or
writes in the wrong place ends the process. What they compute is what the host computes.
"""

import json
import re

import pytest

from tests.gpu_lookalike import environment

PROGRAM = environment.ROOT / "tools" / "scripts" / "gpu_train.py"
ONE_PROCESS = [
    ("dense", "mirrored"),
    ("dense", "mirrored", "tf_keras"),
    ("dense", "mirrored", "reduce"),
    ("dense", "mirrored", "mixed"),
    ("dense", "mirrored", "prefetch"),
    ("embedding", "mirrored"),
    ("embedding", "mirrored", "tf_keras"),
    ("dense", "central"),
    ("embedding", "central"),
]
CLUSTERS = [
    ("dense", "workers"),
    ("dense", "workers", "ring"),
    ("embedding", "workers"),
    ("embedding", "workers", "ring"),
    *((model, mode) for mode in ("sync", "async", "half_async", "geo")
      for model in ("dense", "embedding")),
]  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="session")
def python_of_lookalikes():
    return environment.python()


@pytest.fixture
def train(job, python_of_lookalikes):
    """Returns a function that trains on two GPUs, or on none; what each worker printed."""
    job.python = python_of_lookalikes
    job.environ.pop("PYTHONPATH", None)

    def run(*words, gpus, under=()):
        job.environ["LOOKALIKE_GPUS"] = str(gpus)
        job.environ["CUDA_VISIBLE_DEVICES"] = "0,1" if gpus else "-1"
        if under:
            each = ("--gpus-per-worker", 1) if gpus else ()
            code, output = job.run(*under, *each, PROGRAM, *words, "lookalike")
        else:
            code, output = job.finish(
                job.popen([job.python, str(PROGRAM), *words, "lookalike"]), 600
            )
        assert code == 0, output
        lines = re.findall(r"^(?:\[worker \d\] )?(\{.*\})$", output, re.M)
        return [json.loads(line) for line in lines], output

    return run


def check_devices(on_gpus):
    for gpu in on_gpus:
        assert gpu["gpus"]
        assert all("GPU" in device for device in gpu["replicas"]), gpu


def check_numbers(on_gpus, on_cpus):
    for gpu, cpu in zip(on_gpus, on_cpus, strict=True):
        assert not cpu["gpus"]
        names = ("loss", "evaluated", "predicted")
        assert [gpu[name] for name in names] == [cpu[name] for name in names], (gpu, cpu)


@pytest.mark.parametrize("words", ONE_PROCESS, ids="-".join)
def test_two_replicas(train, words):
    (gpus, _), (cpus, _) = train(*words, gpus=2), train(*words, gpus=0)
    check_devices(gpus)
    check_numbers(gpus, cpus)
    (found,) = gpus
    assert len(found["replicas"]) == 2
    if "central" not in words and "dense" in words:
        assert "GPU:0" in found["variables"]
    if "prefetch" in words:
        assert found["fetched"] == ["GPU:0", "GPU:1"]


@pytest.mark.parametrize("words", CLUSTERS, ids="-".join)
def test_two_workers_of_one_gpu(train, words):
    is_served = words[1] != "workers"
    under = ("--workers", 2, *(("--ps", 1) if is_served else ()))
    gpus, output = train(*words, gpus=2, under=under)
    assert len(gpus) == 2, output
    check_devices(gpus)
    if words[1] in ("workers", "sync"):
        cpus, _ = train(*words, gpus=0, under=under)
        check_numbers(gpus, cpus)
    else:  # no two runs have the same numbers
        assert all(gpu["loss"][-1] < 2.0 for gpu in gpus), output
    if not is_served:
        shares = "NCCL for sums of floats, .*; for everything else shared memory"
        assert bool(re.search(shares, output)) == ("ring" not in words), output
