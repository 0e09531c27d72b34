"""What tf.distribute promises of a replica's function, of values and of input, in closed form.

replica_context.py mirrored|central_storage|workers [replicas a worker]
"""

import functools
import sys

import keras
import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import raises
from tests.support.checks import run_checks

kind = sys.argv[1]
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 2
made = {
    "mirrored": strategies.MirroredStrategy,
    "central_storage": strategies.CentralStorageStrategy,
    "workers": strategies.MultiWorkerMirroredStrategy,
}
strategy = made[kind](num_replicas=replicas)
size, extended = strategy.num_replicas_in_sync, strategy.extended
rank = extended.collectives.rank
context = tf.distribute.get_replica_context


def number():
    """Returns the number of the replica, a float."""
    return tf.cast(context().replica_id_in_sync_group, tf.float32)


def everywhere(fn, *args):
    """Calls a function in all replicas, plainly and in tf.functions; yields the local results."""
    outer = tf.function(lambda *args: strategy.run(fn, args=args))
    for run in (functools.partial(strategy.run, fn, args), functools.partial(outer, *args)):
        yield strategy.experimental_local_results(run())
    lifted = tf.function(fn)
    yield strategy.experimental_local_results(strategy.run(lifted, args=args))


def branching(x, steps=3):
    if x > 0:
        y = x
        for _ in tf.range(steps):
            y += 1.0
    else:
        y = -x
    return y


def doubled_if_positive(_, x):
    first = strategy.experimental_local_results(x)[0]
    if first > 0:
        first = first * 2
    return first


class Holder:
    def method(self, x):
        return branching(x)

    @tf.function
    def function(self, x):
        return branching(x)

    def merged(self, x):
        return context().merge_call(doubled_if_positive, args=(x,))


def check_tensors_decide_in_if_and_for():
    """However the function comes to `run`."""
    holder, function = Holder(), tf.function(branching)
    run, call = strategy.run, extended.call_for_each_replica
    cases = [
        (run, branching),
        (run, functools.partial(branching, steps=3)),
        (run, holder.method),
        (run, function),
        (run, holder.function),
        (call, branching),
        (call, function),
    ]
    for call, fn in cases:
        outer = tf.function(lambda x, fn=fn, call=call: call(fn, args=(x,)))
        is_lifted = fn in (function, holder.function)
        for x, expected in ((2.0, 5.0), (-2.0, 2.0)):
            for caller in (outer, lambda x, fn=fn, call=call: call(fn, args=(x,)))[: 1 + is_lifted]:
                with strategy.scope():
                    results = caller(tf.constant(x))
                values = strategy.experimental_local_results(results)
                assert [float(value) for value in values] == [expected] * replicas, fn
    for merged in (holder.merged, tf.function(holder.merged)):
        outer = tf.function(lambda x, fn=merged: strategy.run(fn, args=(x,)))
        for x in (2.0, -2.0):
            results = outer(tf.constant(x))
            assert float(strategy.experimental_local_results(results)[0]) == max(x, 2 * x)


def rows(x, shape):
    """Returns rows 0 and 2 of a vector of three: x and 2x."""
    return tf.IndexedSlices(tf.stack([x, 2 * x]), tf.constant([0, 2]), shape)


def check_rows_are_summed_broadcast_and_written():
    """Whatever they are made of."""
    aggregation = tf.VariableAggregation
    start, first = np.array([8.0, 9.0, 8.0]), np.array([2.0, 0.0, 4.0])
    # Each worker's first replica writes for all of its replicas.
    mine = first + np.array([1.0, 0.0, 2.0]) * rank * replicas
    every = sum(first + np.array([1.0, 0.0, 2.0]) * n for n in range(size))
    only = aggregation.ONLY_FIRST_REPLICA
    expected = {
        (aggregation.SUM, "scatter_add"): start + every,
        (aggregation.MEAN, "scatter_sub"): start - every / size,
        (only, "scatter_add"): start + mine,
        (only, "scatter_sub"): start - mine,
        (only, "scatter_update"): [mine[0], 9.0, mine[2]],
        (only, "scatter_max"): np.maximum(start, mine),
        (only, "scatter_min"): [mine[0], 9.0, min(8.0, mine[2])],
        (only, "scatter_mul"): [8 * mine[0], 9.0, 8 * mine[2]],
        (only, "scatter_div"): [8 / mine[0], 9.0, 8 / mine[2]],
    }
    for (aggregated, name), result in expected.items():
        for shape in ((3,), None):
            with strategy.scope():
                variable = tf.Variable(tf.zeros([3]), aggregation=aggregated)

            def write(variable=variable, name=name, shape=shape):
                getattr(variable, name)(rows(number() + 2, shape))
                return tf.identity(variable)

            before = variable.assign
            for fn in (tf.function(write), write)[: 2 if shape else 1]:
                before(start)
                for value in strategy.experimental_local_results(strategy.run(fn)):
                    np.testing.assert_allclose(value, result, err_msg=f"{aggregated} {name}")


def check_the_extendeds_sum_is_over_all_replicas():
    """Of tensors, rows and structures."""
    total = size * (size + 1) / 2

    def reduced(op):
        x = number() + 1
        structure = {"x": x, "both": [2 * x, rows(x, tf.constant([3]))]}
        reduced = extended._replica_ctx_all_reduce(op, structure)
        reduced["both"][1] = tf.convert_to_tensor(reduced["both"][1])
        return reduced

    for op, factor in ((tf.distribute.ReduceOp.SUM, 1), (tf.distribute.ReduceOp.MEAN, 1 / size)):
        for fn in (reduced, tf.function(reduced)):
            found = strategy.run(fn, args=(op,))
            for value in strategy.experimental_local_results(found["x"]):
                np.testing.assert_allclose(value, total * factor)
            for value in strategy.experimental_local_results(found["both"][1]):
                np.testing.assert_allclose(value, [total * factor, 0, 2 * total * factor])


def check_a_variable_without_aggregation_is_written_once_a_step():
    """In tf.cond too."""
    with strategy.scope():
        variable = tf.Variable(1.0)

    def write():
        variable.assign_add(1.0)
        variable.assign(variable * 2.0)
        if tf.constant(True):
            variable.assign_add(variable)
        return tf.identity(variable)

    for _ in everywhere(write):
        pass
    # ((1 + 1) * 2) * 2 = 8, (8 + 1) * 4 = 36, (36 + 1) * 4 = 148.
    for one in variable.values:
        assert float(one) == 148.0, variable


def optimizers():
    optimizers = keras.optimizers
    return [
        optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
        strategies.LossScaleOptimizer(
            optimizers.Nadam(0.1, use_ema=True, ema_momentum=0.5), 4.0, dynamic_growth_steps=2
        ),
    ]


class Shrink(keras.constraints.Constraint):
    def __call__(self, w):
        return w * 0.9


def trained(optimizer, x, y):
    """Trains a line, and returns its weights and the optimizer's state."""
    layer = keras.layers.Dense(2, kernel_initializer="ones", kernel_constraint=Shrink())
    model = keras.Sequential([keras.Input([3]), layer])
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(x, y, batch_size=2 * size, shuffle=False, verbose=0)
    return {variable.path: variable.numpy() for variable in model.weights + optimizer.variables}


def check_an_optimizers_state_is_updated_once_a_step():
    """Averages, scales and constraints."""
    x = np.random.default_rng(0).normal(size=[10 * size, 3]).astype("float32")
    y = x @ np.ones([3, 2], "float32")
    expected = [trained(optimizer, x, y) for optimizer in optimizers()]
    with strategy.scope():
        found = [trained(optimizer, x, y) for optimizer in optimizers()]
    for many, one in zip(found, expected, strict=True):
        for (path, value), other in zip(many.items(), one.values(), strict=True):
            np.testing.assert_allclose(value, other, atol=1e-5, err_msg=path)


def devices_of(batch):
    parts = strategy.experimental_local_results(batch)
    return [part.device for part in parts]


def numbers():
    """Two rows a replica in each of two steps."""
    return tf.data.Dataset.range(4 * size).batch(2 * size)


def check_iterators_are_tensorflows():
    """And each replica's batch is on its own device."""
    distributed = strategy.experimental_distribute_dataset(numbers())
    assert isinstance(distributed, tf.distribute.DistributedDataset)
    iterator = iter(distributed)
    assert isinstance(iterator, tf.distribute.DistributedIterator)
    assert str(iterator.element_spec) == str(distributed.element_spec)
    assert devices_of(next(iterator)) == list(extended.worker_devices)


def check_iterators_in_a_function():
    distributed = strategy.experimental_distribute_dataset(numbers())
    iterator = iter(distributed)
    next(iterator)

    @tf.function
    def step(iterator):
        def fn(batch):
            return tf.reduce_sum(batch)

        return strategy.reduce("SUM", strategy.run(fn, args=(next(iterator),)), axis=None)

    assert int(step(iterator)) == sum(range(2 * size, 4 * size))

    @tf.function
    def is_there(iterator):
        return iterator.get_next_as_optional().has_value()

    assert not is_there(iterator)
    another = iter(distributed)
    assert is_there(another)
    assert is_there.experimental_get_tracing_count() == 1


def check_a_replica_cannot_advance_the_iterator_of_all():
    iterator = iter(strategy.experimental_distribute_dataset(numbers()))
    with raises(ValueError, "next(iterator)"):
        strategy.run(lambda: next(iterator))


def check_batches_stay_on_the_host_where_they_are_not_fetched():
    on_host = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    batch = next(iter(strategy.experimental_distribute_dataset(numbers(), on_host)))
    assert all(device.endswith("CPU:0") for device in devices_of(batch))


def check_batches_are_dealt_out_to_devices():
    """What GPUs take their batches from, which no GPU is needed for."""
    distributed = strategy.experimental_distribute_dataset(numbers())
    dealt = distributed._round_robin_iterator(distributed._dataset) if replicas > 1 else None
    if dealt is not None:
        assert devices_of(next(dealt)) == list(extended.worker_devices)


def check_options_that_contradict_each_other_are_errors():
    """As in stock tf.distribute."""
    modes = tf.distribute.InputReplicationMode
    dataset = tf.data.Dataset.range(4).batch(2)

    def options(fetch, place, mode):
        return tf.distribute.InputOptions(
            experimental_fetch_to_device=fetch,
            experimental_place_dataset_on_device=place,
            experimental_replication_mode=mode,
        )

    def from_function(chosen):
        return strategy.distribute_datasets_from_function(lambda _: dataset, chosen)

    wrong = [
        (from_function, options(True, True, modes.PER_WORKER), ValueError),
        (from_function, options(True, True, modes.PER_REPLICA), ValueError),
        (
            lambda chosen: strategy.experimental_distribute_dataset(dataset, chosen),
            options(True, False, modes.PER_REPLICA),
            NotImplementedError,
        ),
    ]
    per_replica = options(False, False, modes.PER_REPLICA)
    if extended.collectives.size > 1:
        wrong.append((from_function, per_replica, NotImplementedError))
    for call, chosen, error in wrong:
        with raises(error, "Received: "):
            call(chosen)
    if extended.collectives.size > 1:
        return
    for chosen in (per_replica, options(True, False, modes.PER_REPLICA)):

        def own(input_context):
            return tf.data.Dataset.from_tensors([input_context.input_pipeline_id])

        batch = next(iter(strategy.distribute_datasets_from_function(own, chosen)))
        parts = strategy.experimental_local_results(batch)
        assert [int(part[0]) for part in parts] == list(range(replicas))


def check_shapes_that_cannot_be_joined_are_an_error_everywhere():
    if extended.collectives.size == 1:
        return

    def gathered(shape, axis):
        value = strategy.run(lambda: tf.ones(shape))
        return strategy.gather(value, axis)

    assert gathered([2, 1 + rank], -1).shape == [2, replicas * 3]
    for shape, axis in (([2, 3 + rank], 0), ([0, 3 + rank], 0), ([2] * (2 + rank), 0)):
        with raises(ValueError, "Received, by rank of the replicas"):
            gathered(shape, axis)


if __name__ == "__main__":
    run_checks(globals())
