"""Ways to train on parameter servers that work, and those that are refused with a way out.

float16 on the wire: sums are near one process's, and are none to the last bit.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import raises
from tests.support.checks import run_checks

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


def on_servers(*arguments, **options):
    with strategy.scope():
        return trained(*arguments, **options)


def distance(found, expected):
    return max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True))


def adam():
    return optimizers.Adam(0.02)


@functools.cache
def alone():
    """Returns the weights of one process."""
    return trained(adam)


@functools.cache
def near():
    """Returns the weights of the servers."""
    return on_servers(adam)


def check_float16_travels():
    assert 0 < distance(near(), alone()) < 0.01, distance(near(), alone())
    program = next(iter(strategy.extended._programs.values()))
    assert [vector.dtype for vector in program._server_programs[0].dense] == [tf.float16]


def check_eager_training():
    eager = on_servers(adam, run_eagerly=True)
    assert distance(eager, near()) < 1e-5, distance(eager, near())


def check_bfloat16():
    assert 0 < distance(on_servers(adam, dtype="mixed_bfloat16"), alone()) < 0.1


def check_loss_scaling():
    scaled = on_servers(lambda: strategies.LossScaleOptimizer(adam()), dtype="mixed_float16")
    assert 0 < distance(scaled, alone()) < 0.1


class Derived(optimizers.Nadam):
    """Not known to treat each element for itself."""


class Known(Derived):
    """Known to, but still with state of its own between variables."""

    elementwise = True


def refused(message, *arguments, **options):
    with raises(Exception, message):
        on_servers(*arguments, **options)


def check_optimizers_that_look_at_more_than_an_element_are_refused():
    refused("Received: Lamb for", lambda: optimizers.Lamb(0.01))
    refused("Received: Nadam", lambda: optimizers.Nadam(0.01))
    refused("Received: Derived, which has state that is common", lambda: Derived(0.01))
    refused("Received: Known, which has state that is common", lambda: Known(0.01))


def check_averages_and_accumulation_are_refused():
    names = "use_ema, gradient_accumulation_steps"
    refused(names, lambda: optimizers.SGD(use_ema=True))
    refused(names, lambda: optimizers.SGD(gradient_accumulation_steps=2))


def check_constraints_are_refused_where_values_travel_as_float16():
    refused("Received: Adam, which applies NonNeg to", adam, constraint="non_neg")


def check_no_graph_has_many_variables():
    """TensorFlow goes through all of a graph whenever something new is run."""
    values = [np.full([9, 2], number, "float32") for number in range(20)]
    with strategy.scope():
        variables = [tf.Variable(value) for value in values]
    registry = strategy.extended.registry
    remote = [variable.remote for variable in variables]
    for one in remote:
        for connection in one.io:
            handles = [op for op in connection.graph.get_operations() if op.type == "VarHandleOp"]
            assert len({op.get_attr("shared_name") for op in handles}) <= 16  # slices of 8
    for found in (registry.read(remote), [registry.read_slices(one) for one in remote]):
        np.testing.assert_array_equal(found, values)
    strategies.barrier(strategy)  # the other worker may still be reading
    registry.write(remote[3], values[5])
    strategies.barrier(strategy)
    np.testing.assert_array_equal(registry.read(remote)[3], values[5])
    np.testing.assert_array_equal(registry.read(remote[3:4])[0], values[5])


def check_a_second_strategy_is_refused():
    """It would share the first one's variables."""
    with raises(ValueError, "Received: a second one"):
        strategies.ParameterServerStrategy()


def check_a_refusal_leaves_nothing_behind():
    expected = near()
    refused("Received: Lamb for", lambda: optimizers.Lamb(0.01))
    assert distance(on_servers(adam), expected) < 1e-6


if __name__ == "__main__":
    run_checks(globals())
