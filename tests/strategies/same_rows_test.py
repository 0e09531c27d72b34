"""Workers with different rows, told from tensors; the others are only numbers."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.data.input_consistency import check_same_rows, compare_first_batch
from tests.support.fakes import FakeWorker

ROWS = np.random.default_rng(0).normal(size=[100, 3, 7]).astype("float32")
LABELS = np.arange(100) % 10
NAMES = [f"{number}.png" for number in range(100)]


class Recorder(FakeWorker):
    """A worker that keeps what it brought to an exchange."""

    def all_gather(self, tensor):
        self.brought = tensor
        return super().all_gather(tensor)


def are_same(*datasets):
    one, two = (data.batch(10).shuffle(3).map(lambda *batch: batch[0]) for data in datasets)
    recorder = Recorder()
    check_same_rows(one, recorder)
    try:
        check_same_rows(two, FakeWorker(1, 2, lambda rank, mine: recorder.brought))
    except ValueError as error:
        assert "rows of worker 1 that are not those of worker 0" in str(error)
        return False
    return True


def slices(*components):
    return tf.data.Dataset.from_tensor_slices(components)


def test_the_same_rows_are_the_same():
    assert are_same(slices(ROWS, LABELS), slices(ROWS.copy(), LABELS.copy()))
    assert are_same(slices(NAMES), slices(list(NAMES)))


@pytest.mark.parametrize("component", [ROWS, LABELS, np.array(NAMES), ROWS > 0, LABELS / 3])
def test_another_order_is_not_the_same(component):
    order = np.random.default_rng(1).permutation(100)
    assert not are_same(slices(component), slices(component[order]))
    assert not are_same(slices(ROWS, component), slices(ROWS, component[order]))


def test_the_same_files_in_other_directories_are_the_same():
    one, two = ([f"/scratch/{host}/{name}" for name in NAMES] for host in ("a", "b"))
    assert are_same(slices(one), slices(two))
    assert not are_same(slices(one), slices(two[::-1]))


def test_numbers_that_another_processor_computed_are_the_same():
    noise = 1 + 1e-6 * np.random.default_rng(1).normal(size=ROWS.shape).astype("float32")
    assert are_same(slices(ROWS - ROWS.mean()), slices(ROWS * noise - ROWS.mean()))


def test_nan_and_infinity_are_compared_too():
    rows = ROWS.copy()
    rows[::2], rows[1] = np.nan, np.inf
    assert are_same(slices(rows), slices(rows))
    assert not are_same(slices(rows), slices(ROWS))


@pytest.mark.parametrize(
    "dataset",
    [
        tf.data.Dataset.range(5),
        slices(np.zeros([0, 3])),
        slices(np.zeros([4, 0])),
        slices(tf.ragged.constant([[1], [2, 3]])),
        slices(tf.sparse.eye(3)),
        slices(np.ones([3], complex)),
        tf.data.Dataset.from_tensors(1),
        tf.data.Dataset.from_generator(lambda: [1, 2], output_signature=tf.TensorSpec([])),
    ],
)
def test_what_has_no_rows_to_compare_passes(dataset):
    assert are_same(dataset, dataset)


def test_a_shard_of_the_rows_is_not_the_same():
    whole = slices(ROWS, LABELS)
    assert not are_same(whole.shard(2, 0), whole.shard(2, 1))
    assert are_same(whole.shard(2, 1), whole.shard(2, 1))


def generated(*components):
    def batches():
        for start in range(0, 100, 40):
            yield tuple(component[start : start + 40] for component in components)

    specs = tuple(tf.TensorSpec([None, *c.shape[1:]], c.dtype) for c in map(np.asarray, components))
    return tf.data.Dataset.from_generator(batches, output_signature=specs)


def compared(one, two):
    """Returns what a worker reads whose dataset is `two`, beside one that reads `one`, twice."""
    recorder = Recorder()
    list(compare_first_batch(one, KeptInGraph(recorder)))
    checked = compare_first_batch(two, FakeWorker(1, 2, lambda _, mine: recorder.brought))
    list(checked)
    return list(checked)


class KeptInGraph(FakeWorker):
    """A worker that keeps what it brought inside of a function."""

    def __init__(self, recorder):
        super().__init__()
        self._recorder = recorder

    def all_gather(self, tensor):
        def keep(value):
            self._recorder.brought = value
            return value

        kept = tf.ensure_shape(tf.numpy_function(keep, [tensor], tensor.dtype), tensor.shape)
        return super().all_gather(kept)


@pytest.mark.parametrize(
    "components", [(ROWS, LABELS), (np.array(NAMES),), (ROWS > 0,), (ROWS, LABELS / 3)]
)
def test_what_generators_yield_is_compared(components, caplog):
    order = np.random.default_rng(1).permutation(100)
    one, other = generated(*components), generated(*(part[order] for part in components))
    for found, expected in zip(compared(one, one), one, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    assert "not those of worker 0" not in caplog.text
    if all(part.dtype.kind == "f" for part in components):
        assert len(compared(one, other)) == 3  # they may be augmented at random
        assert caplog.text.count("rows of worker 1 that are not those of worker 0") == 1
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="not those of worker 0"):
            compared(one, other)


def test_ragged_and_sparse_batches_are_compared():
    def dataset(first):
        rows = tf.data.Dataset.range(first, first + 6)
        ragged = rows.map(lambda n: tf.range(n % 3)).ragged_batch(2)
        sparse = rows.batch(2).map(lambda n: tf.sparse.from_dense(tf.one_hot(n, 9)))
        return tf.data.Dataset.zip(ragged, sparse)

    assert len(compared(dataset(0), dataset(0))) == 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="not those of worker 0"):
        compared(dataset(0), dataset(1))


def test_tensors_are_compared_as_a_whole_alone():
    dataset = slices(ROWS, LABELS).batch(10)
    assert compare_first_batch(dataset, FakeWorker()) is dataset


def test_keras_arrays_are_compared():
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    def dataset(rows):
        return ArrayDataAdapter(rows, LABELS, shuffle=True, batch_size=8).get_tf_dataset()

    recorder = Recorder()
    check_same_rows(dataset(ROWS), recorder)
    with pytest.raises(ValueError, match="set_random_seed"):
        check_same_rows(dataset(ROWS[::-1]), FakeWorker(1, 2, lambda _, mine: recorder.brought))
