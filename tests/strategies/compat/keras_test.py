"""What is known of Keras's insides, in both of them."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

from strategies.compat.keras import path_of, running_method

pytestmark = pytest.mark.training


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request):
    return importlib.import_module(request.param)


def watched(seen):
    """A strategy whose datasets note which method of a model's takes their batches."""

    class Watched(tf.distribute.MirroredStrategy):
        def experimental_distribute_dataset(self, dataset, options=None):
            distributed = super().experimental_distribute_dataset(dataset, options)

            class Noting(type(distributed)):
                def __iter__(self):
                    seen.append(running_method())
                    return super().__iter__()

            distributed.__class__ = Noting
            return distributed

    return Watched(["CPU:0"])


@pytest.mark.in_turn
def test_the_method_that_runs_is_known(keras):
    seen = []
    strategy = watched(seen)
    x = np.ones([4, 2], np.float32)

    class Asking(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.predict(x, verbose=0)

    with strategy.scope():
        model = keras.Sequential([keras.layers.InputLayer([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def called(method, *args, **options):
        seen.clear()
        getattr(model, method)(*args, verbose=0, **options)
        return list(dict.fromkeys(seen))

    assert called("fit", x, x[:, :1]) == ["fit"]
    assert called("evaluate", x, x[:, :1]) == ["evaluate"]
    assert called("predict", x) == ["predict"]
    assert called("fit", x, x[:, :1], validation_data=(x, x[:, :1])) == ["fit", "evaluate"]
    assert called("fit", x, x[:, :1], validation_split=0.5) == ["fit", "evaluate"]
    assert called("fit", x, x[:, :1], callbacks=[Asking()]) == ["fit", "predict"]
    seen.clear()
    next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(2).batch(2))))
    assert seen == [None]


@pytest.mark.in_turn
@pytest.mark.parametrize("built_in", ["constructor", "fit"])
def test_paths_tell_layers_apart(keras, built_in):
    paths = {}

    def noted(create, **arguments):
        name = arguments.get("name")
        if name in ("kernel", "bias"):
            paths.setdefault(name, []).append(path_of(name))
        return create(**arguments)

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.inner = keras.layers.Dense(2, name="inner")

        def call(self, x):
            return self.inner(x)

    keras.backend.clear_session()
    known = [keras.layers.InputLayer([2])] if built_in == "constructor" else []
    with tf.variable_creator_scope(noted), tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        layers = [keras.layers.Dense(2), keras.layers.Dense(2), Block()]
        model = keras.Sequential([*known, *layers], name="model")
        model.compile("sgd", "mse")
        model.fit(np.ones([4, 2]), np.ones([4, 2]), verbose=0)
    above = "model/" if keras.__name__ == "keras" else ""
    expected = [f"{above}{layer}/kernel" for layer in ("dense", "dense_1", "block/inner")]
    assert paths["kernel"] == expected
    assert paths["bias"] == [path.replace("kernel", "bias") for path in expected]
