"""Rows that are saved while training goes on are those of one step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.embedding.checkpoint.row_checkpoint import DeltaBases

pytestmark = pytest.mark.training
SLOW = pytest.mark.slow
# Some chunks of 16 MiB: a row takes 3 KiB with its slot variables.
COUNT, WIDTH = 25_000, 256


class Trained:
    """A layer, and an optimizer that trains it on given ids."""

    def __init__(self, **options):
        # Without a number of rows, each array would reserve a part of the machine's memory, which
        # TensorFlow keeps for the process; oneDNN's allocator has no more than the machine.
        options = {"input_dim": 2 * COUNT, **options}
        keras.utils.set_random_seed(1)
        inputs = keras.Input([None], dtype="int64")
        self.layer = strategies.DistributedEmbedding(WIDTH, name="table", combiner="sum", **options)
        self.model = keras.Model(inputs, self.layer(inputs))
        self.optimizer = keras.optimizers.Adam(0.1)
        self.optimizer.build(self.model.trainable_variables)
        ids = tf.TensorSpec([1, None], tf.int64)
        self.step = tf.function(self._step, input_signature=[ids])

    def _step(self, ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.model(ids, training=True) ** 2)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)

    def train(self, ids):
        self.step(tf.constant([ids], tf.int64))

    def state(self):
        """Returns all arrays of the rows, in the order of ids."""
        arrays = dict(self.layer.snapshot_rows())
        if "0/refused_ids" in arrays:
            order = np.argsort(arrays["0/refused_ids"])
            arrays |= {key: arrays[key][order] for key in arrays if "refused" in key}
        return arrays

    def load(self, directory):
        self.layer.load_rows(str(directory))


def save(trained, directory, during, memory=1 << 30):
    """Saves in the background; returns the state at the cut.

    `during` is called after each chunk, and returns False to be called no more.
    """
    tables = trained.layer.tables
    saving = tables.begin_save(str(directory))
    calls = []

    def check():
        calls.append(None)
        during(len(calls))

    saving.write_first(check)
    assert len(calls) > 3, "one chunk cannot show what comes between two of them"
    tables.cut(saving, memory)
    at_cut = trained.state()
    during(0)  # training goes on while the rest is written
    saving.write_rest()
    saving.publish()
    return at_cut


def lists_of(directory):
    """Returns the names of the arrays that say which ids a save has no longer."""
    names = {path.stem.split("-")[2] for path in directory.glob("*/table*.npy")}
    return names & {"present_ids", "removed_ids"}


def assert_loaded(directory, expected, **options):
    again = Trained(**options)
    again.load(directory)
    found = again.state()
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@SLOW
@pytest.mark.parametrize(
    "memory", [1 << 30, pytest.param(0, marks=SLOW)], ids=["kept", "written at once"]
)
def test_rows_that_are_trained_and_inserted_meanwhile(tmp_path, memory):
    trained = Trained()
    trained.train(np.arange(COUNT))
    random = np.random.default_rng(0)

    def during(number):
        trained.train(random.integers(0, COUNT, 1000))
        trained.train(COUNT + random.integers(0, 5000, 1000))

    at_cut = save(trained, tmp_path, during, memory)
    assert lists_of(tmp_path) == {"removed_ids"}
    assert not np.array_equal(at_cut["0/rows"], trained.state()["0/rows"])
    assert_loaded(tmp_path, at_cut)


@pytest.mark.parametrize(
    ("least", "files"),
    [(1000, "removed_ids"), pytest.param(20_000, "present_ids", marks=SLOW)],
    ids=["few", "most"],
)
def test_rows_that_are_evicted_meanwhile_and_whose_places_others_take(tmp_path, least, files):
    options = {"eviction": strategies.Eviction(age=2)}
    trained = Trained(**options)
    trained.train(np.arange(COUNT))

    def during(number):
        trained.train(np.arange(number * least, COUNT + 1))
        if number == 3:
            assert sum(trained.layer.evict().values()) > 0
            trained.train(COUNT + np.arange(1000))

    at_cut = save(trained, tmp_path, during)
    assert lists_of(tmp_path) == {files}
    assert_loaded(tmp_path, at_cut, **options)


@SLOW
def test_rows_that_are_set_meanwhile(tmp_path):
    trained = Trained()
    trained.train(np.arange(COUNT))

    def during(number):
        if number == 2:
            trained.layer.set_rows(np.array([3, COUNT - 1]), np.ones([2, WIDTH], np.float32))

    at_cut = save(trained, tmp_path, during)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "latest"]
    assert_loaded(tmp_path, at_cut)


@SLOW
def test_counts_and_shared_rows_are_those_of_the_cut(tmp_path):
    options = {
        "input_dim": COUNT + 10, "overflow": "share", "admission": strategies.Admission(2)
    }  # fmt: skip
    trained = Trained(**options)
    for _ in range(2):
        trained.train(np.arange(COUNT))

    def during(number):
        trained.train(COUNT + np.arange(20) * number)

    assert_loaded(tmp_path, save(trained, tmp_path, during), **options)


def test_a_pass_that_is_stopped_is_no_save(tmp_path):
    class Stop(Exception):
        pass

    def check():
        raise Stop

    trained = Trained()
    trained.train(np.arange(10))
    saving = trained.layer.tables.begin_save(str(tmp_path))
    with pytest.raises(Stop):
        saving.write_first(check)
    with pytest.raises(ValueError, match="must contain saved rows"):
        Trained().load(tmp_path)


def test_changes_of_rows_are_counted():
    bases = DeltaBases()
    bases.clear()
    assert bases.changes == 1
