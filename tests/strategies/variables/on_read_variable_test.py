"""Variables that are reduced when they are read; what metrics count: core/step_inputs_test.py."""

import numpy as np
import pytest
import tf_keras

import strategies

pytestmark = pytest.mark.training


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]], ids=len)
def test_weights_of_a_file_are_loaded_into_a_model_whose_metrics_have_counted(tmp_path, devices):
    with strategies.MirroredStrategy(devices).scope():
        model = tf_keras.Sequential([tf_keras.Input([4]), tf_keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=[8, 4]).astype("float32")
    model.fit(x, x[:, :1], verbose=0)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    saved = model.predict(x, verbose=0)
    model.fit(x, x[:, :1], verbose=0)
    model.load_weights(path)
    np.testing.assert_array_equal(model.predict(x, verbose=0), saved)
