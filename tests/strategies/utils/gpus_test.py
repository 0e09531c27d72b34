"""The GPUs of each worker, on hosts that are only descriptions: this one may have none."""

import json

import pytest
import tensorflow as tf

from strategies.collectives import horovod, selection
from strategies.compat.tensorflow import CommunicationOptions
from strategies.mirrored import local_devices
from strategies.multi_worker import gpus_of
from strategies.reduction.cross_device_ops import nccl_between
from strategies.utils.gpus import count_gpus
from tf_config import TFConfig


def config_of(index, hosts):
    workers = [f"{host}:{port}" for port, host in enumerate(hosts, 1)]
    task = {"type": "worker", "index": index}
    return TFConfig.from_json(json.dumps({"cluster": {"worker": workers}, "task": task}))


@pytest.fixture
def four_gpus(monkeypatch):
    see_gpus(monkeypatch, 4)


def see_gpus(monkeypatch, count, virtual=None):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [kind] * count)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda gpu: virtual)


def test_virtual_gpus_count_and_nccl_is_not_used_between_them(monkeypatch):
    devices = ["/device:GPU:0", "/device:GPU:1"]
    see_gpus(monkeypatch, 2)
    assert count_gpus() == 2
    assert isinstance(nccl_between(devices), tf.distribute.NcclAllReduce)
    see_gpus(monkeypatch, 1, ["half", "half"])
    assert count_gpus() == 2
    assert local_devices(2, range(count_gpus())) == devices
    assert nccl_between(devices) is None


def test_gpus_that_are_hidden_do_not_count(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 4)
    see_gpus(monkeypatch, 0)
    assert count_gpus() == 0
    assert list(gpus_of(config_of(0, "aa"), {})) == []


@pytest.mark.parametrize(
    ("environ", "is_warned"),
    [
        ({}, True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, False),
        ({"KERAS_STRATEGIES_OWN_GPUS": "1"}, False),
    ],
)
def test_workers_that_have_to_share_a_gpu_are_warned(monkeypatch, caplog, environ, is_warned):
    see_gpus(monkeypatch, 1)
    assert list(gpus_of(config_of(1, "aa"), environ)) == [0]
    assert ("2 workers on this host, where TensorFlow sees 1" in caplog.text) == is_warned


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
    backend, _ = selection.select_backend(device, CommunicationOptions())
    assert backend.name == expected
