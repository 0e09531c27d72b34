"""The GPUs of each worker, on hosts that are only descriptions: this one may have none."""

import json

import pytest
import tensorflow as tf

from strategies._tensorflow import CommunicationOptions
from strategies.collectives import horovod, selection
from strategies.mirrored import local_devices
from strategies.multi_worker import gpus_of
from tf_config import TFConfig


def config_of(index, hosts):
    workers = [f"{host}:{port}" for port, host in enumerate(hosts, 1)]
    task = {"type": "worker", "index": index}
    return TFConfig.from_json(json.dumps({"cluster": {"worker": workers}, "task": task}))


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 4)


@pytest.mark.parametrize(
    ("index", "hosts", "expected"),
    [(0, "ab", [0, 1, 2, 3]), (0, "aa", [0, 1]), (1, "aa", [2, 3]), (3, "aaaa", [3])],
)
def test_workers_of_a_host_share_its_gpus_evenly(four_gpus, index, hosts, expected):
    gpus = gpus_of(config_of(index, hosts), {})
    assert list(gpus) == expected
    assert local_devices(None, gpus) == [f"/device:GPU:{number}" for number in expected]


@pytest.mark.parametrize(
    "environ",
    [
        {"KERAS_STRATEGIES_OWN_GPUS": "1"},
        {"SLURM_GPUS_PER_TASK": "4", "SLURM_STEP_ID": "0"},
    ],
)
def test_gpus_that_no_other_task_sees_are_not_shared(four_gpus, environ):
    assert list(gpus_of(config_of(1, "aa"), environ)) == [0, 1, 2, 3]


def test_in_a_batch_script_all_tasks_see_the_gpus_of_the_host(four_gpus):
    assert list(gpus_of(config_of(1, "aa"), {"SLURM_GPUS_PER_TASK": "4"})) == [2, 3]


def test_more_workers_than_gpus_are_taken_to_see_their_own(four_gpus):
    assert list(gpus_of(config_of(4, "aaaaa"), {})) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("device", "has_nccl", "expected"),
    [("GPU:0", True, "horovod"), ("GPU:0", False, "tensorflow"), ("CPU:0", False, "horovod")],
)
def test_gpus_are_not_left_to_a_horovod_without_nccl(monkeypatch, device, has_nccl, expected):
    monkeypatch.setattr(horovod, "load", lambda: None)
    monkeypatch.setattr(horovod, "has_nccl", lambda: has_nccl)
    assert selection._available(device, CommunicationOptions())[0] == expected
