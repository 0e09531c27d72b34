"""Sums, means and gathers, with collectives that pretend that others have values too."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives import LocalCollectives
from strategies.reduction import ReductionOptions, ReplicaCrossDeviceOps, sparse

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


class Twins:
    """Two workers, of which the other has `other` times what this one has."""

    rank, size = 0, 2

    def __init__(self, others=None):
        self._others = others
        self.calls = []

    def all_reduce(self, tensors):
        self.calls.append(len(tensors))
        others = tensors if self._others is None else self._others
        return [a + tf.cast(b, a.dtype) for a, b in zip(tensors, others, strict=True)]

    def all_gather(self, tensor):
        return tf.concat([tensor, tensor], 0)

    def broadcast(self, tensor):
        return tensor


def test_all_values_of_a_call_travel_together():
    collectives = Twins()
    results = ReplicaCrossDeviceOps(collectives).all_reduce(SUM, [[tf.ones([2]), tf.ones([])]])
    assert [result.numpy().tolist() for result in results] == [[2, 2], 2]
    assert collectives.calls == [2]


def test_the_rows_of_indexed_slices_are_joined():
    slices = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([3]), tf.constant([5, 1]))
    ops = ReplicaCrossDeviceOps(Twins())
    dense, joined = ops.all_reduce(MEAN, [[tf.constant(2.0), slices]])
    assert dense == 2
    assert joined.indices.numpy().tolist() == [3, 3]
    np.testing.assert_allclose(tf.convert_to_tensor(joined)[3], [2.0])


def test_a_worker_without_examples_counts_for_nothing_in_a_mean():
    ops = ReplicaCrossDeviceOps(Twins(others=[1.0, 6.0]))
    nothing = tf.constant(0.0)
    assert ops.all_reduce(MEAN, [[tf.constant(float("nan"))]], [nothing])[0] == 6
    assert ops.all_reduce(MEAN, [[tf.constant(4.0)]], [nothing])[0] == 6
    assert ops.all_reduce(MEAN, [[tf.constant(4.0)]], [tf.constant(1.0)])[0] == 5


def test_a_worker_without_examples_counts_for_nothing_in_a_mean_of_slices():
    ops = ReplicaCrossDeviceOps(Twins(others=[1.0]))
    slices = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([3]), tf.constant([5, 1]))
    nothing = tf.constant(0.0)
    (joined,) = ops.all_reduce(MEAN, [[slices]], [nothing])
    np.testing.assert_allclose(tf.convert_to_tensor(joined)[3], [4.0])  # two rows of one replica


def test_in_a_sum_only_what_is_no_number_is_left_out():
    ops = ReplicaCrossDeviceOps(Twins(others=[tf.constant([6.0, 6.0])]))
    value = tf.constant([float("nan"), 1.0])
    without = ops.all_reduce(SUM, [[value]], [tf.constant(0.0)])[0]
    assert without.numpy().tolist() == [6, 7]
    with_rows = ops.all_reduce(SUM, [[value]], [tf.constant(1.0)])[0]
    assert np.isnan(with_rows.numpy()[0])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_joins_along_any_axis(axis):
    value = tf.reshape(tf.range(24), [2, 3, 4])
    joined = ReplicaCrossDeviceOps(Twins()).gather(value, axis)
    np.testing.assert_array_equal(joined, np.concatenate([value, value], axis))


def test_indexed_slices_are_not_gathered():
    slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]))
    with pytest.raises(NotImplementedError, match="Received: IndexedSlices"):
        ReplicaCrossDeviceOps(Twins())._gather(slices, slices, 0)


def table_gradient(rows=3):
    indices = tf.constant([3, 1, 3])[:rows]
    values = tf.constant([[1.0], [2.0], [4.0]])[:rows]
    return tf.IndexedSlices(values, indices, tf.constant([5, 1]))


@pytest.mark.parametrize(("limit", "calls"), [(4, []), (5, [2])])
@pytest.mark.parametrize("replicas", [[3], [2], [2, 3]])
def test_rows_are_summed_whichever_way_they_travel(limit, calls, replicas):
    collectives = Twins()
    ops = ReplicaCrossDeviceOps(
        collectives, options=ReductionOptions(sum_rows=True, dense_below=limit)
    )
    gradients = [table_gradient(rows) for rows in replicas]
    (found,) = ops.all_reduce(SUM, [[gradient] for gradient in gradients])
    expected = sum(2 * tf.convert_to_tensor(gradient).numpy() for gradient in gradients)
    np.testing.assert_allclose(tf.convert_to_tensor(found), expected)
    # Rows that nobody touched are not there, for optimizers would decay their state.
    assert set(found.indices.numpy()) == {1, 3}
    assert len(found.indices) == 2
    assert collectives.calls == calls
    (mean,) = ops.all_reduce(MEAN, [[gradient] for gradient in gradients])
    np.testing.assert_allclose(tf.convert_to_tensor(mean), expected / 2 / len(replicas))


def test_values_travel_in_buckets_the_last_ones_first():
    collectives = Twins()
    ops = ReplicaCrossDeviceOps(collectives, options=ReductionOptions(bucket_bytes=16))
    values = [tf.fill([size], float(size)) for size in (2, 2, 6, 1)]
    results = ops.all_reduce(SUM, [values])
    assert collectives.calls == [1, 1, 2]
    for value, result in zip(values, results, strict=True):
        np.testing.assert_allclose(result, 2 * value)


def test_half_precision_is_for_sums_of_float32_alone():
    sent = []

    class Recorder(Twins):
        def all_reduce(self, tensors):
            sent.extend(tensor.dtype for tensor in tensors)
            return super().all_reduce(tensors)

    ops = ReplicaCrossDeviceOps(Recorder(), options=ReductionOptions(compression="fp16"))
    values = [tf.constant(1.0 + 2**-10), tf.constant(3), tf.constant(1.0, tf.float64)]
    results = ops.all_reduce(SUM, [values])
    assert sorted(dtype.name for dtype in sent) == ["float16", "float64", "int32"]
    assert [result.dtype for result in results] == [value.dtype for value in values]
    assert float(results[0]) == 2 * (1.0 + 2**-10)
    sent.clear()
    ops.all_reduce(MEAN, [[tf.constant(1.0)]])
    assert sent == [tf.float32]


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_sum_in_half_precision_overflows_no_sooner_than_its_summands(replicas):
    options = ReductionOptions(compression="fp16", sum_rows=True)
    ops = ReplicaCrossDeviceOps(Twins(), options=options)
    rows = tf.IndexedSlices(tf.constant([[60000.0]]), tf.constant([1]), tf.constant([3, 1]))
    dense, sparse = ops.all_reduce(SUM, [[tf.constant([60000.0, 1e-3]), rows]] * replicas)
    summands = 2 * replicas
    np.testing.assert_allclose(dense, [summands * 60000, summands * 1e-3], rtol=2.0**-10)
    np.testing.assert_allclose(sparse.values, [[summands * 60000]], rtol=2.0**-10)
    assert sparse.indices.numpy().tolist() == [1]


def test_without_other_workers_nothing_is_rounded_to_half_precision():
    ops = ReplicaCrossDeviceOps(LocalCollectives(), options=ReductionOptions(compression="fp16"))
    assert ops.all_reduce(SUM, [[tf.constant(1e5 + 1)]])[0] == 1e5 + 1


def test_replicas_of_a_process_are_summed_before_anything_moves():
    collectives = Twins()
    ops = ReplicaCrossDeviceOps(collectives)
    replicas = [[tf.constant(1.0)], [tf.constant(2.0)], [tf.constant(float("nan"))]]
    weights = [tf.constant(1.0), tf.constant(1.0), tf.constant(0.0)]
    assert ops.all_reduce(SUM, replicas, weights)[0] == 6
    assert ops.all_reduce(MEAN, replicas, weights)[0] == 1.5
    assert collectives.calls == [1, 2]


@pytest.mark.parametrize(
    "values",
    [{"bucket_bytes": -1}, {"bucket_bytes": 1.5}, {"dense_below": True}, {"compression": "bf16"}],
)
def test_wrong_options_are_refused(values):
    with pytest.raises(ValueError, match="Received: "):
        ReductionOptions(**values)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.int64])
@pytest.mark.parametrize("width", [1, 10, 31, 32])
def test_rows_of_one_position_are_summed_in_their_order(width, dtype):
    random = np.random.default_rng(0)
    values = tf.cast(tf.constant(random.normal(0, 9, [500, width])), dtype)
    positions = tf.constant(random.integers(0, 60, 500))
    sums = sparse.sum_by_position(values, positions, 61)
    assert sums.dtype == dtype
    expected = np.zeros([61, width], dtype.as_numpy_dtype)
    for position, row in zip(positions.numpy(), values.numpy(), strict=True):
        expected[position] += row
    np.testing.assert_array_equal(sums, expected)


def test_sums_by_position_of_nothing_and_of_what_is_not_finite():
    nothing = sparse.sum_by_position(tf.zeros([0, 4]), tf.zeros([0], tf.int32), 3)
    np.testing.assert_array_equal(nothing, np.zeros([3, 4]))
    values = tf.constant([[np.nan], [np.inf], [1.0]])
    sums = sparse.sum_by_position(values, tf.constant([2, 0, 0]), 3)
    np.testing.assert_array_equal(sums, [[np.inf], [0], [np.nan]])


def test_in_a_function_values_are_exchanged_after_earlier_updates():
    weight = tf.Variable(0.0)

    class Exchange(Twins):
        def all_reduce(self, tensors):
            value = tf.numpy_function(lambda: weight.numpy(), [], tf.float32)
            return [tf.ensure_shape(value, []) for _ in tensors]

    ops = ReplicaCrossDeviceOps(Exchange())

    @tf.function
    def step(matrix):
        for _ in tf.range(100):
            matrix = tf.matmul(matrix, matrix) / 300
        weight.assign_add(matrix[0, 0])
        log = tf.constant(1.0)
        (reduced,) = ops.batch_reduce(tf.distribute.ReduceOp.SUM, [(log, log)])
        return reduced

    for number in range(1, 4):
        assert step(tf.ones([300, 300])).numpy() == number
