"""What workers communicate by: the argument, the environment, and what Horovod cannot do."""

import pytest
import tensorflow as tf

import strategies
from strategies import ReductionOptions
from strategies.collectives import selection
from strategies.collectives.selection import _check_for_horovod, resolve_communication
from strategies.compat.tensorflow import CommunicationOptions
from strategies.reduction.options import with_bucket_bytes

Implementation = tf.distribute.experimental.CommunicationImplementation


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
        name, reason = selection._chosen_network(communication, "CPU:0", options)
        assert (name, reason) == ("tensorflow", "as communication_options ask for")
    assert selection._chosen_network("horovod", "CPU:0", options)[0] == "horovod"


def test_packs_are_buckets():
    fifty = CommunicationOptions(bytes_per_pack=50)
    assert with_bucket_bytes(None, CommunicationOptions()) == ReductionOptions()
    assert with_bucket_bytes(ReductionOptions(dense_below=1), fifty) == ReductionOptions(
        50, dense_below=1
    )
    assert with_bucket_bytes(ReductionOptions(50), fifty).bucket_bytes == 50
    with pytest.raises(ValueError, match="bytes_per_pack=50 and bucket_bytes=7. Leave out one"):
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
        _check_for_horovod(options, has_nccl)
    else:
        with pytest.raises(ValueError, match=f"{message}. Take communication='tensorflow'"):
            _check_for_horovod(options, has_nccl)
