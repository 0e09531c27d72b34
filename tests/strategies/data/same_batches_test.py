"""Workers with different examples, told from tensors; the others are only numbers."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.data.input_consistency import check_same_examples
from strategies.data.same_batches import BatchComparison, _difference
from strategies.data.sharding import shard_dataset
from tests.support.fakes import FakeWorker, with_steps

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
    check_same_examples(one, recorder)
    try:
        check_same_examples(two, FakeWorker(1, 2, lambda rank, mine: recorder.brought))
    except ValueError as error:
        assert "examples of worker 1 that differ from those of worker 0" in str(error)
        return False
    return True


def slices(*components):
    return tf.data.Dataset.from_tensor_slices(components)


def test_the_same_examples_are_the_same():
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
def test_what_has_no_examples_to_compare_passes(dataset):
    assert are_same(dataset, dataset)


def test_a_shard_of_the_examples_is_not_the_same():
    whole = slices(ROWS, LABELS)
    assert not are_same(whole.shard(2, 0), whole.shard(2, 1))
    assert are_same(whole.shard(2, 1), whole.shard(2, 1))


class Kept:
    """Keeps what workers bring to their comparisons, which are simulated one worker at a time."""

    def __init__(self):
        self.summaries = {}

    def of(self, dataset, worker):
        """Returns the numbers of the batches that are compared."""
        shared = shard_dataset(dataset, with_steps(worker, 2), is_compared=True)
        self.summaries[worker] = [summary.numpy() for summary, _ in shared]
        return [number for number, due, *_ in self.summaries[worker] if due]


def difference(*datasets):
    """Returns the number of the batch whose comparison finds a difference, and the difference."""
    kept = Kept()
    first, second = (kept.of(dataset, worker) for worker, dataset in enumerate(datasets))
    assert first == second
    for number in first:
        found = _difference(kept.summaries[1][number], kept.summaries[0][number])
        if found:
            return number, found
    return None


def batches(*components):
    return slices(*components).batch(10)


@pytest.mark.parametrize(
    "components",
    [(ROWS, LABELS), (np.array(NAMES),), (ROWS > 0,), (ROWS, LABELS / 3), (ROWS.astype("half"),)],
)
def test_batches_in_another_order_are_found(components):
    order = np.random.default_rng(1).permutation(100)
    dataset = batches(*components)
    assert difference(dataset, dataset) is None
    assert difference(dataset, batches(*(part[order] for part in components))) == (0, "order")


@pytest.mark.parametrize(("start", "found"), [(20, 3), (50, 7), (90, 9)])
def test_another_order_later_in_an_epoch_is_found_in_the_next_batch_compared(start, found):
    """That is the next batch whose number is a power of two, less one; or the last one."""
    late = np.concatenate([np.arange(start), np.roll(np.arange(start, 100), 3)])
    assert difference(batches(ROWS, LABELS), batches(ROWS[late], LABELS[late]))[0] == found


@pytest.mark.slow
def test_floats_that_are_augmented_at_random_differ_where_others_do_not():
    noisy = ROWS + np.random.default_rng(1).normal(size=ROWS.shape).astype("float32")
    for labels in (LABELS, LABELS / 3):
        assert difference(batches(ROWS, labels), batches(noisy, labels)) == (0, "floats")
    for constant in ([], [np.ones(100)], [np.ones(100, int)]):
        assert difference(batches(ROWS, *constant), batches(noisy, *constant)) == (0, "order")
    nearly = ROWS * (1 + 1e-6 * np.random.default_rng(1).normal(size=ROWS.shape))
    assert difference(batches(ROWS), batches(nearly.astype("float32"))) is None


def test_ragged_and_sparse_batches_are_compared():
    def dataset(first):
        rows = tf.data.Dataset.range(first, first + 6)
        ragged = rows.map(lambda n: tf.range(n % 3)).ragged_batch(2)
        sparse = rows.batch(2).map(lambda n: tf.sparse.from_dense(tf.one_hot(n, 9)))
        return tf.data.Dataset.zip(ragged, sparse)

    assert difference(dataset(0), dataset(0)) is None
    assert difference(dataset(0), dataset(1)) == (0, "order")


def test_a_worker_that_differs_is_named():
    kept = Kept()
    order = np.random.default_rng(1).permutation(100)
    for worker, dataset in enumerate((batches(ROWS, LABELS), batches(ROWS[order], LABELS[order]))):
        kept.of(dataset, worker)
    first, other = (kept.summaries[worker][0] for worker in range(2))

    def checked(of_others):
        worker = FakeWorker(0, 3, lambda rank, mine: [of_others[rank - 1]])
        return BatchComparison(worker).check_batch(tf.constant(first), tf.constant([1])).numpy()

    assert checked([first, first]) == [1]
    errors = (ValueError, tf.errors.InvalidArgumentError)  # eager, and inside of a function
    with pytest.raises(errors, match="examples of worker 2 that differ"):
        checked([first, other])


def test_keras_arrays_are_compared():
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    def dataset(rows):
        return ArrayDataAdapter(rows, LABELS, shuffle=True, batch_size=8).get_tf_dataset()

    recorder = Recorder()
    check_same_examples(dataset(ROWS), recorder)
    with pytest.raises(ValueError, match="set_random_seed"):
        check_same_examples(dataset(ROWS[::-1]), FakeWorker(1, 2, lambda _, mine: recorder.brought))
