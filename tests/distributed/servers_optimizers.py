"""Every optimizer, and constraints, on servers: as in one process, or refused by name.

servers_optimizers.py keras|tf_keras MODE

There is one worker, which never waits for another, so that each mode but "async" follows one
process. In "async" a step lacks the one before, so only that something was trained is looked at.
"""

import importlib
import sys

import numpy as np

import strategies
from tests.support.assertions import assert_all_close, raises
from tests.support.checks import run_checks

api, mode = sys.argv[1:]
keras = importlib.import_module(api)
options = {"geo_steps": 1} if mode == "geo" else {}
strategy = strategies.from_tf_config(mode=mode, **options)
optimizers = keras.optimizers
random = np.random.default_rng(0)
x = random.normal(size=[32, 6]).astype("float32")
y = (x @ random.normal(size=[6, 1]) > 0).astype("float32")


def names():
    """Returns the names of all optimizers of this Keras that train by themselves."""
    wrappers = "Optimizer", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap"
    return [
        name
        for name, made in sorted(vars(optimizers).items())
        if isinstance(made, type) and name not in wrappers
    ]


def trained(make_optimizer, constraint=None):
    keras.utils.set_random_seed(1)
    hidden = keras.layers.Dense(8, "tanh", kernel_constraint=constraint)
    layers = [keras.layers.InputLayer([6]), hidden, keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential(layers)
    before = model.get_weights()
    model.compile(make_optimizer(), "binary_crossentropy", jit_compile=False)
    # Keras 3.15 drops the first value of ScheduleFreeAdamW's momentum if fit builds it.
    model.optimizer.build(model.trainable_variables)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert any(np.any(a != b) for a, b in zip(before, model.get_weights(), strict=True))
    return model.get_weights()


def on_servers(*arguments):
    with strategy.scope():
        return trained(*arguments)


def follows(make_optimizer, constraint=None):
    found = on_servers(make_optimizer, constraint)
    if mode != "async":
        expected = trained(make_optimizer, constraint)
        assert_all_close(found, expected, rtol=1e-5, atol=1e-6)


def check_each_optimizer_follows_one_process_or_is_refused_by_name():
    for name in names():
        print(name, flush=True)
        make = lambda name=name: getattr(optimizers, name)(0.01)  # noqa: E731
        if name in ("Adafactor", "Nadam") and mode != "geo":
            with raises(Exception, f"Received: {name}, which "):
                on_servers(make)
        else:
            follows(make)


def check_constraints_hold_or_are_refused_by_the_optimizers_name():
    make = lambda: optimizers.SGD(0.5)  # noqa: E731
    if mode in ("sync", "geo"):
        follows(make, "non_neg")
        assert on_servers(make, "non_neg")[0].min() >= 0
    else:
        with raises(Exception, "Received: SGD, which applies NonNeg to", "dense"):
            on_servers(make, "non_neg")
    follows(make)


if __name__ == "__main__":
    run_checks(globals())
