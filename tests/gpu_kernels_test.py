"""All that runs on replicas could run on GPUs, as far as TensorFlow's wheel tells without one."""

import pytest
import tensorflow as tf

from tests.support.check_jobs import checks_of
from tests.support.gpu_kernels import copies, functions, without_gpu_kernel

SLOW = pytest.mark.slow
PROGRAM = "gpu_kernels.py"
COPIES = "a_step_copies_ids_to_the_host_and_rows_and_gradients_once"
LAYERS = ["layers_of_keras", "layers_in_half_precision", "tables_of_rows"]


@pytest.mark.parametrize(
    "api_and_strategy",
    [
        ("keras", "mirrored"),
        pytest.param(("keras", "central"), marks=SLOW),
        pytest.param(("tf_keras", "mirrored"), marks=SLOW),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("check", checks_of(PROGRAM, only=LAYERS, slow=LAYERS[:2]))
def test_replicas_of_one_process(run_check, check, api_and_strategy):
    run_check(check, *api_and_strategy, workers=0)


# A central storage has the variables of the optimizer on the host as well, and tf_keras sums the
# rows of a gradient once more.
@pytest.mark.parametrize("check", checks_of(PROGRAM, only=[COPIES]))
def test_a_lookup_crosses_to_the_host_and_back_once(run_check, check):
    run_check(check, "keras", "mirrored", workers=0)


@SLOW
@pytest.mark.parametrize("options", ['{"mode": "reduce", "split_above": 8}',
                                     '{"compression": "fp16", "sum_rows": true}'])  # fmt: skip
@pytest.mark.parametrize("check", checks_of(PROGRAM, only=LAYERS))
def test_compression_and_state_in_parts(run_check, check, options):
    run_check(check, "keras", "workers", options)


@SLOW
@pytest.mark.parametrize(
    ("api", "communication"),
    [("keras", "tensorflow"), ("tf_keras", "shared_memory")],
    indirect=["communication"],
)
@pytest.mark.parametrize("check", checks_of(PROGRAM, only=LAYERS))
def test_workers(run_check, check, api, communication):
    run_check(check, api, "workers")


@SLOW
@pytest.mark.parametrize(
    "api_and_mode",
    [("keras", "sync"), ("tf_keras", "async"), ("keras", "half_async"), ("keras", "geo")],
    ids="-".join,
)
@pytest.mark.parametrize("check", checks_of(PROGRAM, only=[LAYERS[0], LAYERS[2]]))
def test_workers_of_servers(run_check, check, api_and_mode):
    run_check(check, *api_and_mode, ps=1)


def found_in(look, device):
    """Returns what `look` finds in a function with one of two operations on a device."""

    @tf.function
    def one_step(text):
        with tf.device(device):
            doubled = tf.strings.join([text, text])
        with tf.device("CPU:0"):
            return tf.strings.length(doubled)

    before = functions()
    one_step(tf.constant("text"))
    return look(functions() - before)


def test_an_operation_on_a_replica_without_a_gpu_kernel_is_found():
    assert {each.name for each in found_in(without_gpu_kernel, "CPU:1")} == {"StringJoin"}
    assert not found_in(without_gpu_kernel, "CPU:0")


def test_functions_without_a_step_are_an_error():
    with pytest.raises(ValueError, match="There must be a function of a step"):
        without_gpu_kernel([])


def test_a_tensor_that_crosses_is_found():
    (found,) = found_in(copies, "CPU:1")
    assert (found.to_host, found.type) == (True, "string")
    assert not found_in(copies, "CPU:0")
