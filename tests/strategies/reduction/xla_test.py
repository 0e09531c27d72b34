"""What XLA cannot compile is refused where it is traced, and nothing else is."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

import strategies

pytestmark = pytest.mark.training
DEVICES = ["CPU:0", "CPU:1"]


@pytest.mark.each_value
@pytest.mark.parametrize("api", ["keras", "tf_keras"])
@pytest.mark.parametrize(
    "strategy", [strategies.MirroredStrategy, strategies.CentralStorageStrategy]
)
def test_a_step_of_several_devices_is_not_compiled(api, strategy):
    keras = importlib.import_module(api)
    with strategy(DEVICES).scope():
        model = keras.Sequential([keras.layers.InputLayer([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"], jit_compile=True)
    with pytest.raises(ValueError, match="step that uses several devices.*CPU:0, .*CPU:1"):
        model.fit(np.ones([4, 3]), np.ones([4, 1]), batch_size=4, verbose=0)


def test_what_has_no_variables_is_compiled():
    strategy = strategies.MirroredStrategy(DEVICES)
    compiled = tf.function(lambda x: x * x + 1.0, jit_compile=True)
    results = strategy.run(compiled, [tf.constant(3.0)])
    assert [float(each) for each in strategy.experimental_local_results(results)] == [10.0, 10.0]


def test_one_device_is_compiled():
    strategy = strategies.MirroredStrategy(DEVICES[:1])
    with strategy.scope():
        variable = tf.Variable(2.0)
    assert float(strategy.run(tf.function(lambda: variable * 2.0, jit_compile=True))) == 4.0
