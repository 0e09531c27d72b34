"""fp16 compression: float16 travels, sums are near, and all workers have the same bits.

compression.py keras|tf_keras [replicas a worker]
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.checks import run_checks

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
plain = strategies.from_tf_config(num_replicas=replicas)
strategy = strategies.from_tf_config(
    num_replicas=replicas, options=strategies.ReductionOptions(compression="fp16")
)
n = strategy.num_replicas_in_sync


class Recorder:
    """The workers' collectives, and the types of what they sum."""

    def __init__(self, collectives):
        self._collectives = collectives
        self.summed = []

    def __getattr__(self, name):
        return getattr(self._collectives, name)

    def all_reduce(self, tensors):
        self.summed += [(tensor.dtype.name, tensor.shape.as_list()) for tensor in tensors]
        return self._collectives.all_reduce(tensors)


recorder = Recorder(strategy.extended.collectives)
strategy.extended._cross_device_ops._collectives = recorder

# Gradients of very different sizes, other ones on each replica.
values = np.random.default_rng(0).normal(size=[n, 1000]) * np.logspace(-3, 3, 1000)
values = values.astype("float32")
exact = values.astype("float64").sum(axis=0)


def reduced(op, values):
    """Returns the result, and the types and shapes that travelled."""

    @tf.function
    def step():
        def replica():
            context = tf.distribute.get_replica_context()
            return context.all_reduce(op, tf.gather(values, context.replica_id_in_sync_group))

        return strategy.run(replica)

    recorder.summed.clear()
    return strategy.experimental_local_results(step())[0].numpy(), list(recorder.summed)


def check_sums_travel_as_float16_and_are_near():
    found, travelled = reduced(SUM, values)
    assert travelled == [("float16", [1000])], travelled
    # Half an ulp, 2**-11, for each value and for each sum that is made on the way.
    error = np.abs(found - exact) / np.abs(values).sum(axis=0)
    assert error.max() <= n * 2.0**-11, error.max()
    assert error.max() > 2.0**-16, "it did not lose anything"


def check_what_is_read_and_not_applied_is_sent_as_it_is():
    """A mean of losses."""
    found, travelled = reduced(MEAN, values)
    assert {dtype for dtype, _ in travelled} == {"float32"}, travelled
    np.testing.assert_allclose(found, exact / n, rtol=1e-4, atol=1e-6)


def check_any_other_type_is_sent_as_it_is():
    found, travelled = reduced(SUM, values.astype("float64"))
    assert travelled == [("float64", [1000])]
    np.testing.assert_allclose(found, exact)


def check_a_sum_overflows_no_sooner_than_its_summands():
    """What each replica can send has a sum, with the same bits on all workers."""
    for value in 60000.0, 65504.0:
        found, travelled = reduced(SUM, np.full([n, 1], value, "float32"))
        assert travelled == [("float16", [1])], travelled
        np.testing.assert_allclose(found, [n * value], rtol=2.0**-10)
        everywhere = recorder.all_gather(tf.constant(found)).numpy()
        assert len(set(everywhere.tolist())) == 1, everywhere
    assert np.isinf(reduced(SUM, np.full([n, 1], 70000.0, "float32"))[0])


def trained(strategy):
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential([layers.InputLayer([6]), layers.Dense(8, "tanh")])
        model.add(layers.Dense(1))
        model.compile(keras.optimizers.SGD(0.02, momentum=0.5), "mse")
    random = np.random.default_rng(1)
    model.set_weights([random.normal(size=w.shape) * 0.3 for w in model.weights])
    x = random.normal(size=[20 * 4 * n, 6]).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    losses = model.fit(x, y, batch_size=4 * n, epochs=3, shuffle=False, verbose=0).history["loss"]
    strategies.verify_equal(strategy, model.variables)
    return losses, model.get_weights()


def check_training_is_near_that_without_compression():
    losses, weights = trained(plain)
    recorder.summed.clear()
    near_losses, near_weights = trained(strategy)
    gradients = [[6, 8], [8], [8, 1], [1]]
    assert all(("float16", shape) in recorder.summed for shape in gradients), recorder.summed
    np.testing.assert_allclose(near_losses, losses, rtol=0.02)
    for one, other in zip(near_weights, weights, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)
        assert not np.array_equal(one, other), "the same as without compression"


if __name__ == "__main__":
    run_checks(globals())
