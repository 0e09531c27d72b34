"""Workers with different rows, told from tensors; the others are only numbers."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.data.same_rows import check_same_rows
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


def test_keras_arrays_are_compared():
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    def dataset(rows):
        return ArrayDataAdapter(rows, LABELS, shuffle=True, batch_size=8).get_tf_dataset()

    recorder = Recorder()
    check_same_rows(dataset(ROWS), recorder)
    with pytest.raises(ValueError, match="set_random_seed"):
        check_same_rows(dataset(ROWS[::-1]), FakeWorker(1, 2, lambda _, mine: recorder.brought))
