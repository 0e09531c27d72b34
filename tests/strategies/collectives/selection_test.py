"""What workers communicate by: the argument, the environment, and what Horovod cannot do."""

import json

import pytest
import tensorflow as tf

import strategies
from strategies import ReductionOptions
from strategies.collectives import registry, selection
from strategies.collectives.base import LocalCollectives
from strategies.collectives.gpu import GpuCollectives
from strategies.collectives.horovod import _check_options
from strategies.collectives.registry import Backend, backends
from strategies.collectives.selection import resolve_communication, with_implementation
from strategies.compat.tensorflow import CommunicationOptions
from strategies.reduction.options import with_bucket_bytes
from tf_config import TFConfig

Implementation = tf.distribute.experimental.CommunicationImplementation
DTYPES = [tf.float32, tf.int64, tf.bfloat16, tf.int32]


def test_the_argument_wins_over_the_environment():
    environ = {"KERAS_STRATEGIES_COMMUNICATION": "tensorflow"}
    assert resolve_communication("horovod", environ) == "horovod"
    assert resolve_communication(None, environ) == "tensorflow"
    assert resolve_communication(None, {}) == "auto"


def test_another_one_is_refused():
    with pytest.raises(
        ValueError, match="'auto', 'shared_memory', 'horovod', 'tensorflow'. Received: 'mpi'"
    ):
        strategies.MultiWorkerMirroredStrategy(communication="mpi")
    with pytest.raises(ValueError, match="Received: ''"):
        resolve_communication(None, {"KERAS_STRATEGIES_COMMUNICATION": ""})


def test_other_options_are_refused():
    with pytest.raises(ValueError, match=r"options=strategies.ReductionOptions\(...\)"):
        strategies.MultiWorkerMirroredStrategy(None, ReductionOptions())


def test_one_worker_takes_stocks_options():
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=50, timeout_seconds=120.0, implementation=Implementation.NCCL
    )
    assert strategies.MultiWorkerMirroredStrategy(None, options).num_replicas_in_sync == 1


@pytest.mark.parametrize(
    "asked", [{"implementation": Implementation.RING}, {"timeout_seconds": 9.0}]
)
def test_options_of_tensorflows_collectives_choose_them(asked):
    options = CommunicationOptions(**asked)
    for communication in ("auto", "shared_memory"):
        backend, reason = selection._resolve_network(communication, "CPU:0", options)
        assert (backend.name, reason) == ("tensorflow", "as requested by communication_options")
    assert selection._resolve_network("horovod", "CPU:0", options)[0].name == "horovod"


def test_the_back_ends_by_preference():
    assert [backend.name for backend in backends()] == ["horovod", "tensorflow"]


@pytest.mark.parametrize(
    ("obstacle", "expected"),
    [("", ("pigeons", "it is installed")), ("rain", ("tensorflow", "as requested by"))],
)
def test_a_back_end_that_registers_is_selected_where_nothing_is_in_its_way(
    monkeypatch, obstacle, expected
):
    monkeypatch.setattr(registry, "_backends", dict(registry._backends))
    registry.register(Backend("pigeons", "Pigeons", 0, lambda *_: obstacle, lambda *_: None))
    assert resolve_communication("pigeons", {}) == "pigeons"
    ring = CommunicationOptions(implementation=Implementation.RING)  # which Horovod has not
    backend, reason = selection._resolve_network("auto", "CPU:0", ring)
    assert backend.name == expected[0] and reason.startswith(expected[1])


RESOLVER = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))


@pytest.mark.parametrize(
    ("arguments", "resolver"),
    [
        ((Implementation.RING, None, None), None),
        ((Implementation.RING, RESOLVER, None), RESOLVER),
        ((None, None, Implementation.RING), None),
        ((RESOLVER, None, Implementation.RING), RESOLVER),
        ((Implementation.RING, CommunicationOptions(), "horovod"), None),
    ],
)
def test_the_argument_of_the_experimental_class_is_an_implementation(arguments, resolver):
    found, options, communication = with_implementation(*arguments)
    assert found is resolver and options.implementation == Implementation.RING
    assert communication == (arguments[2] if arguments[2] == "horovod" else None)


def test_an_implementation_is_given_once():
    options = CommunicationOptions(timeout_seconds=9.0, implementation=Implementation.NCCL)
    with pytest.raises(ValueError, match="must be given only once. Received: .*RING, .*NCCL"):
        with_implementation(Implementation.RING, options, None)
    _, found, _ = with_implementation(Implementation.NCCL, options, None)
    assert (found.timeout_seconds, found.implementation) == (9.0, Implementation.NCCL)


def test_one_worker_takes_the_argument_of_the_experimental_class():
    for make in (strategies.MultiWorkerMirroredStrategy, strategies.from_tf_config):
        assert make(Implementation.AUTO).num_replicas_in_sync == 1
        assert make(communication=Implementation.RING).num_replicas_in_sync == 1


def test_nccl_between_cpus_is_refused():
    cluster = {"worker": ["a:1", "b:1"]}
    config = TFConfig.from_json(
        json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    )
    options = CommunicationOptions(implementation=Implementation.NCCL)
    with pytest.raises(ValueError, match="NCCL cannot communicate between CPUs"):
        selection.connect_workers(config, "auto", options, 1.0, "/device:CPU:0")


@pytest.mark.parametrize(
    ("communication", "device", "options", "expected"),
    [
        ("auto", "CPU:0", {}, True),
        ("shared_memory", "CPU:0", {}, True),
        ("auto", "CPU:0", {"implementation": Implementation.RING}, False),
        ("auto", "CPU:0", {"timeout_seconds": 3.0}, False),
        ("auto", "GPU:0", {}, True),
        ("auto", "GPU:0", {"implementation": Implementation.NCCL}, True),
        ("auto", "GPU:0", {"implementation": Implementation.RING}, False),
        ("auto", "GPU:0", {"timeout_seconds": 3.0}, False),
        ("shared_memory", "GPU:0", {}, False),  # that everything goes this way is not possible
    ],
)
def test_who_may_share_memory(communication, device, options, expected):
    device = f"/device:{device}"
    assert selection._may_share(communication, device, CommunicationOptions(**options)) == expected


def test_workers_with_gpus_sum_floats_by_one_way_and_do_the_rest_by_another():
    class Ways(LocalCollectives):
        def __init__(self, name):
            self.name = name

        def new_stream(self):
            return Ways(f"stream of {self.name}")

        def all_reduce(self, tensors):
            used[self.name] = [tensor.dtype for tensor in tensors]
            return tensors

    used = {}
    gpu = GpuCollectives(Ways("nccl"), Ways("host"))
    values = [tf.constant([number], dtype) for number, dtype in enumerate(DTYPES)]
    assert [int(total[0]) for total in gpu.all_reduce(values)] == list(range(len(DTYPES)))
    assert used == {"nccl": [DTYPES[0], DTYPES[2]], "host": [DTYPES[1], DTYPES[3]]}
    assert gpu.new_stream().name == "stream of host"
    assert [int(total[0]) for total in gpu.all_reduce(values[:1])] == [0]
    described = selection._describe(gpu, "auto", "/device:GPU:0", CommunicationOptions())
    assert described.startswith("NCCL for sums of floats, through ")


def test_packs_are_buckets():
    fifty = CommunicationOptions(bytes_per_pack=50)
    assert with_bucket_bytes(None, CommunicationOptions()) == ReductionOptions()
    assert with_bucket_bytes(ReductionOptions(dense_below=1), fifty) == ReductionOptions(
        50, dense_below=1
    )
    assert with_bucket_bytes(ReductionOptions(50), fifty).bucket_bytes == 50
    with pytest.raises(ValueError, match="bytes_per_pack=50 and bucket_bytes=7. Omit one of them"):
        with_bucket_bytes(ReductionOptions(7), fifty)


@pytest.mark.parametrize(
    ("options", "has_nccl", "message"),
    [
        ({}, False, None),
        ({"bytes_per_pack": 3}, False, None),
        ({"implementation": Implementation.NCCL}, True, None),
        ({"implementation": Implementation.NCCL}, False, "Implementation.NCCL"),
        ({"implementation": Implementation.RING}, True, "Implementation.RING"),
        ({"timeout_seconds": 3.0}, False, "timeout_seconds=3.0"),
    ],
)
def test_horovod_refuses_what_it_cannot_do(options, has_nccl, message):
    options = CommunicationOptions(**options)
    if message is None:
        _check_options(options, has_nccl)
    else:
        with pytest.raises(ValueError, match=f"{message}. Use communication='tensorflow'"):
            _check_options(options, has_nccl)
