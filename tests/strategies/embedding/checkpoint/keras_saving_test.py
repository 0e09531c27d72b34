"""What is loaded is what was there, however rows and optimizers came to change."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from strategies import DistributedEmbedding
from strategies.embedding.tf_keras_layer import DistributedEmbedding as TfKerasEmbedding
from tests.support.worker_threads import on_workers

pytestmark = pytest.mark.training

APIS = pytest.mark.parametrize(
    ("api", "embedding"),
    [(keras, DistributedEmbedding), (tf_keras, TfKerasEmbedding)],
    ids=["keras", "tf_keras"],
)
IDS = np.array([1, 2, 3, 4], np.int64)


class Trained:
    """A layer with an optimizer, of one of several workers."""

    def __init__(self, collectives, is_built=True):
        self.layer = DistributedEmbedding(2, name="table", embeddings_initializer="zeros")
        self.layer._collectives = collectives
        self.layer.build()
        self.optimizer = keras.optimizers.Adagrad(1.0)
        if is_built:
            self.optimizer.build(self.layer.trainable_variables)

    def train(self, ids, steps=1):
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.layer(tf.constant(ids, tf.int64), training=True))
            gradients = tape.gradient(loss, self.layer.trainable_variables)
            self.optimizer.apply(gradients, self.layer.trainable_variables)


def set_some(trained, path):
    trained.layer.set_rows(IDS[:2], np.full([2, 2], 7.0))


def import_some(trained, path):
    other = Trained(trained.layer._collectives)
    other.layer.set_rows(IDS[1:], np.full([3, 2], 8.0))
    other.layer.export_rows(str(path / "plain"))
    trained.layer.import_rows(str(path / "plain"))


def restore_an_older_one(trained, path):
    other = Trained(trained.layer._collectives)
    other.train([2, 3, 9])
    trained.layer.restore_rows(other.layer.snapshot_rows())


def load_another_one(trained, path):
    other = Trained(trained.layer._collectives)
    other.train([2, 3, 9], steps=2)
    other.layer.save_rows(str(path / "other"))
    trained.layer.load_rows(str(path / "other"))


def set_weights(trained, path):
    before = trained.layer.get_weights()
    trained.train(IDS)
    trained.layer.save_rows(str(path / "rows"), delta=True)
    trained.layer.set_weights(before)


def begin_anew(trained, path):
    trained.__init__(trained.layer._collectives)


def compile_anew(trained, path):
    trained.optimizer = None
    trained.optimizer = keras.optimizers.Adagrad(1.0)
    trained.optimizer.build(trained.layer.trainable_variables)


CHANGES = [
    set_some,
    import_some,
    restore_an_older_one,
    load_another_one,
    set_weights,
    begin_anew,
    compile_anew,
]


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_change_otherwise_than_by_training_are_saved(tmp_path, change, workers):
    def save(collectives):
        trained = Trained(collectives)
        trained.train(IDS, steps=3)
        trained.layer.save_rows(str(tmp_path / "rows"))
        change(trained, tmp_path)
        trained.train([3])
        trained.layer.save_rows(str(tmp_path / "rows"), delta=True)
        return trained.layer.snapshot_rows()

    def load(collectives):
        trained = Trained(collectives)
        trained.layer.load_rows(str(tmp_path / "rows"))
        return trained.layer.snapshot_rows()

    def by_id(arrays):
        order = np.argsort(arrays["0/ids"])
        names = [name for name in arrays if name != "0/step" and "initial" not in name]
        return {name: arrays[name][order].tolist() for name in names}

    saved = on_workers(workers, save)[0]
    assert by_id(on_workers(1, load)[0]) == by_id(saved)


def test_a_delta_has_what_was_trained_on_since_it_was_saved_or_loaded(tmp_path):
    def save(collectives):
        trained = Trained(collectives)
        trained.train(IDS)
        trained.layer.save_rows(str(tmp_path))
        trained.train([3])
        return trained.layer.save_rows(str(tmp_path), delta=True)

    def go_on(collectives):
        trained = Trained(collectives)
        trained.layer.load_rows(str(tmp_path))
        trained.train([4])
        return trained.layer.save_rows(str(tmp_path), delta=True)

    for function, ids in ((save, [3]), (go_on, [4])):
        (folder,) = on_workers(1, function)
        assert np.load(f"{folder}/table0-worker0-ids.npy").tolist() == ids


@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_workers_whose_optimizers_have_other_states_say_so(tmp_path, is_checkpoint):
    def save(collectives):
        trained = Trained(collectives, is_built=collectives.rank == 0)
        found = r"worker 0: .*optimizer state .'table': .'accumulator'.*; worker 1: .*'table': \[\]"
        with pytest.raises(ValueError, match=found):
            if is_checkpoint:
                trained.layer.snapshot_rows()
            else:
                trained.layer.save_rows(str(tmp_path))

    on_workers(2, save)


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_rows_without_slot_variables_get_the_initial_ones(tmp_path, workers, is_checkpoint):
    def train(collectives):
        before = Trained(collectives)
        before.layer.set_rows(IDS, np.zeros([4, 2]))
        before.train([1])
        before.layer.save_rows(str(tmp_path / "rows"))
        after = Trained(collectives, is_built=False)
        if is_checkpoint:
            after.layer.restore_rows(before.layer.snapshot_rows())
        else:
            after.layer.load_rows(str(tmp_path / "rows"))
        for each in (before, after):
            each.layer.set_rows(IDS + 2, np.zeros([4, 2]))
            each.train([1, 2, 3, 5, 6, 7])
        return before.layer.rows(), after.layer.rows()

    for before, after in on_workers(workers, train):
        np.testing.assert_array_equal(before[0], after[0])
        np.testing.assert_array_equal(before[1], after[1])


def test_the_first_save_of_a_delta_may_be_older_than_the_optimizer(tmp_path):
    def train(collectives):
        before = Trained(collectives, is_built=False)
        with tf.GradientTape():
            before.layer(tf.constant(IDS), training=True)
        before.layer.save_rows(str(tmp_path))
        before.train([1])
        before.layer.save_rows(str(tmp_path), delta=True)
        after = Trained(collectives, is_built=False)
        after.layer.load_rows(str(tmp_path))
        for each in (before, after):
            each.train(IDS)
        return before.layer.rows(), after.layer.rows()

    ((before, after),) = on_workers(1, train)
    np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.in_turn
@APIS
def test_slot_variables_go_with_their_optimizer(tmp_path, api, embedding):
    def model():
        made = api.Sequential([api.Input([2], dtype="int64"), embedding(2, combiner="sum")])
        made.compile(api.optimizers.Adam(0.1), "mse")
        return made

    def loss(of):
        return of.fit(IDS.reshape([2, 2]), np.ones([2, 2]), verbose=0).history["loss"]

    first, second = model(), model()
    (layer,) = first.layers[-1:]
    loss(first)
    first.compile(api.optimizers.Adam(0.1), "mse")
    loss(first)
    assert sorted(name for name in layer.snapshot_rows() if "0/slot" in name) == sorted(
        f"0/slot/{name}" for name in (("momentum", "velocity") if api is keras else ("m", "v"))
    )
    first.save_weights(tmp_path / "x.weights.h5")
    second.optimizer.build(second.trainable_variables)
    second.load_weights(tmp_path / "x.weights.h5")
    arrays = [each.layers[-1].snapshot_rows() for each in (first, second)]
    for name in arrays[0]:
        np.testing.assert_array_equal(arrays[0][name], arrays[1][name])


def test_two_optimizers_of_one_table_have_a_state_each():
    layer = DistributedEmbedding(2)
    layer.build()
    optimizers = [keras.optimizers.Adam(), keras.optimizers.Adam()]
    for each in optimizers:
        each.build(layer.trainable_variables)
    assert len([name for name in layer.snapshot_rows() if name.startswith("0/slot")]) == 4
