"""The parts of batches, with workers that are only numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from strategies.compat.tensorflow import PerReplica
from strategies.data.sharding import Epochs, equal_steps, shard_dataset
from tests.support.fakes import with_steps
from tests.support.worker_threads import ThreadWorker, on_workers

pytestmark = pytest.mark.training


def parts(dataset, size):
    """Returns each worker's batches."""
    return [list(shard_dataset(dataset, with_steps(rank, size))) for rank in range(size)]


@settings(max_examples=30)
@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 5))
def test_parts_of_a_batch_joined_by_rank_are_the_batch(rows, batch_size, workers):
    dataset = tf.data.Dataset.range(rows).batch(batch_size)
    batches = [batch.numpy() for batch in dataset]
    by_worker = parts(dataset, workers)
    for worker in by_worker:
        assert len(worker) == len(batches)
    for step, batch in enumerate(batches):
        pieces = [worker[step].numpy() for worker in by_worker]
        np.testing.assert_array_equal(np.concatenate(pieces), batch)
        sizes = [len(piece) for piece in pieces]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


def test_every_kind_of_component_is_cut():
    elements = {
        "dense": tf.reshape(tf.range(10), [5, 2]),
        "text": tf.constant(list("abcde")),
        "ragged": tf.ragged.constant([[1], [], [2, 3], [4], [5, 6, 7]]),
        "sparse": tf.sparse.from_dense([[1, 0], [0, 2], [3, 0], [0, 0], [4, 5]]),
    }
    dataset = tf.data.Dataset.from_tensors((elements, tf.range(5)))
    (((one, first),),), (((two, second),),) = ([part] for part in parts(dataset, 2))
    assert first.numpy().tolist() == [0, 1, 2]
    assert second.numpy().tolist() == [3, 4]
    assert two["dense"].numpy().tolist() == [[6, 7], [8, 9]]
    assert two["text"].numpy().tolist() == [b"d", b"e"]
    assert one["ragged"].to_list() == [[1], [], [2, 3]]
    assert tf.sparse.to_dense(two["sparse"]).numpy().tolist() == [[0, 0], [4, 5]]


def test_a_fixed_batch_size_stays_fixed():
    dataset = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
    assert shard_dataset(dataset, with_steps(0, 2)).element_spec.shape == [2]
    assert shard_dataset(dataset, with_steps(0, 3)).element_spec.shape == [2]
    assert shard_dataset(dataset, with_steps(2, 3)).element_spec.shape == [1]


def test_one_worker_gets_the_dataset_as_it_is():
    dataset = tf.data.Dataset.range(8)
    assert shard_dataset(dataset, with_steps(0, 1)) is dataset
    assert equal_steps(dataset, with_steps(0, 1)) is dataset


@pytest.mark.parametrize(
    "dataset",
    [
        tf.data.Dataset.range(8),
        tf.data.Dataset.from_tensor_slices((np.zeros([4, 5]), np.zeros([4, 1]))),
    ],
)
def test_a_dataset_that_is_not_batched_is_refused(dataset):
    with pytest.raises(ValueError, match=r"Call .batch\(...\) with the global batch size"):
        shard_dataset(dataset, with_steps(0, 2))


def test_components_of_different_length_are_refused():
    dataset = tf.data.Dataset.from_generator(
        lambda: [(np.zeros(3), np.zeros(2))],
        output_signature=(tf.TensorSpec([None]), tf.TensorSpec([None])),
    ).apply(tf.data.experimental.assert_cardinality(1))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the same number of examples"):
        list(shard_dataset(dataset, with_steps(0, 2)))


@pytest.mark.parametrize(("rank", "expected"), [(0, [2, 1, 0]), (1, [2, 2, 2])])
def test_who_runs_dry_goes_on_with_empty_batches(rank, expected):
    dataset = tf.data.Dataset.range([3, 6][rank]).batch(2)
    padded = equal_steps(dataset, with_steps(rank, 2, [2, 3]))
    assert [len(batch) for batch in padded] == expected


def of_unknown_sizes(rows, is_length_known):
    """Returns batches of two rows, of every kind, whose specs have no size but the number 4."""

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def components(ones):
        count, width = tf.shape(ones)[0], tf.shape(ones)[1]
        return {
            "dense": ones,
            "text": tf.strings.as_string(ones),
            "ragged": tf.RaggedTensor.from_row_lengths(
                tf.ones([2 * count, width, 4]), tf.fill([count], 2)
            ),
            "sparse": tf.sparse.from_dense(ones),
        }

    dataset = tf.data.Dataset.range(rows).map(lambda _: tf.ones([3])).batch(2).map(components)
    return dataset if is_length_known else dataset.filter(lambda _: True)


class StreamWorker(ThreadWorker):
    """A worker that is a thread, and whose pipelines exchange, too."""

    def new_stream(self):
        return self

    def all_gather(self, tensor):
        def gather(value):
            return np.concatenate(self._meeting.exchange(self.rank, value))

        if tf.is_symbolic_tensor(tensor):
            gathered = tf.numpy_function(gather, [tensor], tensor.dtype)
            return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])
        return super().all_gather(tensor)


@pytest.mark.each_value
@pytest.mark.parametrize("is_length_known", [True, False])
@pytest.mark.parametrize("rows", [(5, 1), (3, 0)])
@pytest.mark.parametrize("replicas", [1, 2])
def test_empty_batches_have_the_shapes_of_others(rows, is_length_known, replicas):
    def batches(worker):
        worker = StreamWorker(worker._meeting, worker.rank)
        dataset = of_unknown_sizes(rows[worker.rank], is_length_known)
        padded = equal_steps(dataset, worker, replicas)
        parts = [
            value.values if isinstance(value, PerReplica) else [value]
            for one in padded
            for value in (one[kind] for kind in ("dense", "text", "ragged", "sparse"))
        ]
        return [
            each for n in range(0, len(parts), 4) for each in zip(*parts[n : n + 4], strict=True)
        ]

    first, second = on_workers(2, batches)
    assert len(first) == len(second) == -(-rows[0] // 2 // replicas) * replicas
    for dense, text, ragged, sparse in first + second:
        count = len(dense)
        assert dense.shape == text.shape == (count, 3)
        assert ragged.flat_values.shape == (2 * count, 3, 4) and ragged.nrows() == count
        assert sparse.dense_shape.numpy().tolist() == [count, 3]
    assert sum(len(dense) for dense, *_ in second) == rows[1]


def test_equal_and_endless_data_stay_as_they_are():
    dataset = tf.data.Dataset.range(4).batch(2)
    assert equal_steps(dataset, with_steps(0, 2, [2, 2])) is dataset
    endless = dataset.repeat()
    infinite = tf.data.INFINITE_CARDINALITY
    assert equal_steps(endless, with_steps(0, 2, [infinite, infinite])) is endless
    with pytest.raises(
        ValueError, match=r"infinite dataset on worker 1, .* steps by rank: \[2, -1\]"
    ):
        equal_steps(dataset, with_steps(0, 2, [2, infinite]))


def test_epochs_go_on_and_an_epoch_left_early_starts_anew():
    epochs = Epochs(tf.data.Dataset.range(6).batch(4))
    for _ in range(3):
        assert [batch.numpy().tolist() for batch in epochs] == [[0, 1, 2, 3], [4, 5]]
    for left in (1, 2, 1):
        iterator = iter(epochs)
        assert [next(iterator).numpy()[0] for _ in range(left)] == [0, 4][:left]
    assert [batch.numpy().tolist() for batch in epochs] == [[0, 1, 2, 3], [4, 5]]


def test_epochs_of_a_function_with_a_fixed_seed_differ():
    tf.random.set_seed(1)
    source = tf.data.Dataset.range(1).map(lambda _: tf.random.shuffle(tf.range(20)))
    tf.random.set_seed(None)
    runs = [next(iter(source)).numpy().tolist() for _ in range(2)]
    assert runs[0] == runs[1]  # why Epochs exists
    epochs = Epochs(source)
    orders = [next(iter(epochs)).numpy().tolist() for _ in range(2)]
    orders += [batch.numpy().tolist() for _ in range(2) for batch in epochs]
    assert len(set(map(tuple, orders))) == 4
    assert all(sorted(order) == list(range(20)) for order in orders)


@pytest.mark.parametrize("shuffle", [True, False])
def test_kerass_arrays_are_shuffled_anew_where_keras_does_so(shuffle):
    adapter = ArrayDataAdapter(np.arange(10), batch_size=4, shuffle=shuffle)
    whole = adapter.get_tf_dataset()
    one, other = ([batch.numpy().tolist() for batch in whole] for _ in range(2))
    shuffles_anew = one != other
    # The nightly builds of Keras 3.16 shuffle once for all epochs.
    assert shuffles_anew == shuffle or "dev" in keras.__version__
    tf.random.set_seed(1)
    parts = shard_dataset(adapter.get_tf_dataset(), with_steps(0, 2))
    tf.random.set_seed(None)
    assert isinstance(parts, Epochs) == shuffle
    one, other = ([part.numpy().tolist() for part in parts] for _ in range(2))
    assert (one != other) == shuffles_anew
    assert [len(part) for part in one] == [2, 2, 1]


def test_own_batches_are_split_over_the_steps():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.range(6).batch(4).with_options(options)
    split = shard_dataset(dataset, with_steps(0, 2, [4, 4]))
    assert [batch.numpy().tolist() for batch in split] == [[0, 1], [2, 3], [4], [5]]


def test_files_are_shared_out_where_the_dataset_asks_for_it(tmp_path):
    for index in range(4):
        (tmp_path / f"{index}.txt").write_text(f"{index}a\n{index}b\n")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    files = sorted(map(str, tmp_path.iterdir()))
    dataset = tf.data.TextLineDataset(files).batch(2).with_options(options)
    seen = [
        b"".join(
            np.concatenate(
                [part.numpy() for part in shard_dataset(dataset, with_steps(rank, 2, [4, 4]))]
            )
        )
        for rank in range(2)
    ]
    assert seen == [b"0a0b2a2b", b"1a1b3a3b"]


@pytest.mark.each_value
@pytest.mark.parametrize(
    "element",
    [
        np.zeros([6, 1]),
        (np.zeros([6, 1]),),
        ((np.zeros([6, 1]), np.zeros([6, 2])),),
        (np.zeros([6, 1]), np.zeros([6, 2])),
        {"a": np.zeros([6, 1])},
        ({"a": np.zeros([6, 1])},),
    ],
)
@pytest.mark.parametrize("policy", ["AUTO", "DATA", "OFF"])
@pytest.mark.parametrize("steps", [(), (3, 7), (-2, -2)])
def test_elements_keep_their_structure(element, policy, steps):
    dataset = tf.data.Dataset.from_tensor_slices(element).batch(3)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    for replicas in (1, 2):
        shared = shard_dataset(dataset.with_options(options), with_steps(0, 2, steps), replicas)
        spec = tf.nest.map_structure(
            lambda one: getattr(one, "_value_specs", [one])[0], shared.element_spec
        )
        tf.nest.assert_same_structure(spec, dataset.element_spec)
