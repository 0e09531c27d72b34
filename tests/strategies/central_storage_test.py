"""CentralStorageStrategy; the checks stand in tests/distributed."""

import numpy as np
import pytest
import tf_keras

import strategies
from tests.support.check_jobs import checks_of


@pytest.mark.parametrize("api", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "check",
    checks_of("central.py", slow=["uneven_examples_in_float16", "uneven_examples_in_bfloat16"]),
)
def test_replicas_do_what_one_process_does(run_check, check, api):
    run_check(check, api, workers=1)


@pytest.mark.in_turn
@pytest.mark.training
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_updates_are_not_compiled_by_xla(name):
    """Where there is a GPU, optimizers of tf_keras compile theirs, for one device."""

    def trained(jit_compile):
        with strategies.CentralStorageStrategy(["CPU:1"], "CPU:0").scope():
            model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=[3])])
            optimizer = getattr(tf_keras.optimizers, name)(0.1)
            optimizer.jit_compile = jit_compile
            model.compile(optimizer, "mse")
        model.set_weights([np.ones([3, 2]), np.zeros([2])])
        model.fit(np.ones([8, 3]), np.ones([8, 2]), batch_size=4, verbose=0)
        return model.get_weights()

    for plain, compiled in zip(trained(False), trained(True), strict=True):
        np.testing.assert_array_equal(plain, compiled)
