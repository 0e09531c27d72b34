"""Whoever leaves an iterator does not wait until TensorFlow has deleted it."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies.data import distributed_dataset
from strategies.data.iterator_deletion import delete_in_background


class Owner:
    pass


class Iterator:
    """Says which thread deletes it, and takes its time."""

    def __init__(self):
        self.may_end = threading.Event()
        self.deleted_by = []
        self.is_deleted = threading.Event()

    def __del__(self):
        self.may_end.wait(30)
        self.deleted_by.append(threading.get_ident())
        self.is_deleted.set()


def test_an_iterator_is_deleted_after_its_owner_by_another_thread():
    iterator, owner = Iterator(), Owner()
    may_end, by, is_deleted = iterator.may_end, iterator.deleted_by, iterator.is_deleted
    delete_in_background(iterator, owner)
    del iterator
    assert not is_deleted.wait(0.1)
    del owner  # and does not wait
    may_end.set()
    assert is_deleted.wait(30)
    assert by != [threading.get_ident()]


PROGRAM = """
import time
from strategies.data.iterator_deletion import delete_in_background
class Iterator:
    def __del__(self):
        time.sleep({seconds})
        print("deleted", flush=True)
class Owner:
    pass
owner, kept = Owner(), Owner()
for each in (owner, kept):
    delete_in_background(Iterator(), each)
del owner, each
print("ending", flush=True)
"""


def test_python_ends_after_the_deletions(forked, tmp_path):
    """A thread that TensorFlow lets go of while Python ends would abort the process."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(seconds=1))
    job = forked.popen([forked.python, str(program)])
    code, output = forked.finish(job, timeout=60)
    assert code == 0, output
    assert output.splitlines()[:2] == ["ending", "deleted"], output


def test_an_error_does_not_wait_for_a_deletion(forked, tmp_path):
    """Such as that of a lost worker, whose job ends when all others have ended."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(seconds=120) + "del kept\nraise ValueError('lost')\n")
    job = forked.popen([forked.python, str(program)])
    code, output = forked.finish(job, timeout=60)
    assert code == 1, output
    assert output.splitlines()[-1] == "ValueError: lost", output


@pytest.fixture
def owners(monkeypatch):
    """What owns the iterators that are deleted in the background."""
    found = []
    monkeypatch.setattr(
        distributed_dataset, "delete_in_background", lambda iterator, owner: found.append(owner)
    )
    return found


def test_iterators_of_distributed_datasets_are_deleted_by_another_thread(owners):
    strategy = strategies.MirroredStrategy(num_replicas=2)
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(8)).batch(4)
    distributed = strategy.experimental_distribute_dataset(dataset)
    iterator = iter(distributed)
    assert owners == [iterator]

    @tf.function
    def total():
        return sum(next(iter(distributed)).values)

    assert total().numpy().tolist() == [2, 4]
    assert len(owners) == 1  # a function's iterators end with its execution


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, number):
        return np.ones([4, 3]), np.ones([4, 1])


class Sequence(tf_keras.utils.Sequence):
    __len__, __getitem__ = Rows.__len__, Rows.__getitem__


def dataset():
    return tf.data.Dataset.from_tensors((np.ones([4, 3]), np.ones([4, 1])))


def dataset_of_python():
    spec = tf.TensorSpec([4, 3]), tf.TensorSpec([4, 1])
    rows = tf.data.Dataset.from_generator(generator, output_signature=spec)
    return tf.data.Dataset.range(1).flat_map(lambda _: rows)


def dataset_of_datasets_of_python():
    return tf.data.Dataset.range(1).flat_map(lambda _: dataset_of_python())


def generator():
    yield np.ones([4, 3]), np.ones([4, 1])


@pytest.mark.each_value
@pytest.mark.filterwarnings("ignore")
@pytest.mark.training
@pytest.mark.parametrize(
    ("api", "make", "is_pure"),
    [
        (keras, dataset, True),
        (keras, lambda: np.ones([4, 3]), True),
        (keras, generator, False),
        (keras, dataset_of_python, False),
        (keras, dataset_of_datasets_of_python, False),
        (keras, Rows, False),
        (tf_keras, dataset, True),
        (tf_keras, lambda: np.ones([4, 3]), True),
        (tf_keras, generator, False),
        (tf_keras, Sequence, False),
    ],
)
def test_iterators_that_run_python_are_not_deleted_in_the_background(owners, api, make, is_pure):
    """Two at once would each take a part of it."""
    with strategies.MirroredStrategy(num_replicas=2).scope():
        model = api.Sequential([api.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = make()
    labels = {"y": np.ones([4, 1])} if isinstance(data, np.ndarray) else {}
    model.fit(data, **labels, verbose=0)
    # Keras 3 has one more iterator, over a placeholder, to build the model.
    assert (len(owners) > (api is keras)) == is_pure
