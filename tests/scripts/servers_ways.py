"""Ways to train on parameter servers that work, and those that are refused with a way out.

float16 on the wire: sums are near one process's, and are none to the last bit.
"""

import keras
import numpy as np
import tensorflow as tf

import strategies

ROWS = 16
layers, optimizers = keras.layers, keras.optimizers
strategy = strategies.from_tf_config(mode="sync", min_slice_size=8, compression="fp16")
random = np.random.default_rng(0)
x = random.normal(size=[64, 6]).astype("float32")
y = (x @ random.normal(size=[6, 1]) > 0).astype("float32")


def trained(optimizer, dtype=None, constraint=None, **options):
    keras.utils.set_random_seed(1)
    inputs = keras.Input([6])
    hidden = layers.Dense(8, "tanh", dtype=dtype, kernel_constraint=constraint)(inputs)
    model = keras.Model(inputs, layers.Dense(1, "sigmoid", dtype="float32")(hidden))
    model.compile(optimizer(), "binary_crossentropy", **options)
    losses = model.fit(x, y, batch_size=ROWS, epochs=3, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0], losses
    return model.get_weights()


def distance(found, expected):
    return max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True))


class Derived(optimizers.Nadam):
    """Not known to treat each element for itself."""


class Known(Derived):
    """Known to, but still with state of its own between variables."""

    elementwise = True


def adam():
    return optimizers.Adam(0.02)


alone = trained(adam)
with strategy.scope():
    near = trained(adam)
    assert 0 < distance(near, alone) < 0.01, distance(near, alone)
    program = next(iter(strategy.extended._programs.values()))
    assert [pack.dtype for pack in program._ready[0].packs] == [tf.float16]
    eager = trained(adam, run_eagerly=True)
    assert distance(eager, near) < 1e-5, distance(eager, near)
    assert 0 < distance(trained(adam, dtype="mixed_bfloat16"), alone) < 0.1
    scaled = trained(lambda: strategies.LossScaleOptimizer(adam()), dtype="mixed_float16")
    assert 0 < distance(scaled, alone) < 0.1


def refused(message, *arguments, **options):
    try:
        with strategy.scope():
            trained(*arguments, **options)
    except Exception as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"not refused: {message}")


refused("Received: Lamb for", lambda: optimizers.Lamb(0.01))
refused("Received: Nadam", lambda: optimizers.Nadam(0.01))
refused("Received: Derived, which keeps", lambda: Derived(0.01))
refused("Received: Known, which keeps", lambda: Known(0.01))
refused("use_ema, gradient_accumulation_steps", lambda: optimizers.SGD(use_ema=True))
refused(
    "use_ema, gradient_accumulation_steps", lambda: optimizers.SGD(gradient_accumulation_steps=2)
)
refused("as a weight's constraint gives it", adam, constraint=keras.constraints.NonNeg())
try:
    strategies.ParameterServerStrategy()
except ValueError as error:
    assert "Received: a second one" in str(error), error
else:
    raise AssertionError("a second strategy shares the first one's variables")
with strategy.scope():
    assert distance(trained(adam), near) < 1e-6, "a refusal has left something behind"
strategies.barrier(strategy)
print("passed")
