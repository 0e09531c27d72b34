"""Sums, means and gathers, with collectives that pretend that others have values too."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.reduction import ReplicaCrossDeviceOps

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
    dense, joined = ReplicaCrossDeviceOps(Twins()).all_reduce(MEAN, [[tf.constant(2.0), slices]])
    assert dense == 2
    assert joined.indices.numpy().tolist() == [3, 3]
    np.testing.assert_allclose(tf.convert_to_tensor(joined)[3], [2.0])


def test_a_worker_without_rows_counts_for_nothing_in_a_mean():
    ops = ReplicaCrossDeviceOps(Twins(others=[6.0, 1.0]))
    nothing = tf.constant(0.0)
    assert ops.all_reduce(MEAN, [[tf.constant(float("nan"))]], [nothing])[0] == 6
    assert ops.all_reduce(MEAN, [[tf.constant(4.0)]], [nothing])[0] == 6
    assert ops.all_reduce(MEAN, [[tf.constant(4.0)]], [tf.constant(1.0)])[0] == 5


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
