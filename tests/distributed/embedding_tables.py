"""Tables on any number of workers: own optimizers, copies, shared rows, plain files, and serving.

embedding_tables.py keras|tf_keras [replicas a worker]
"""

import functools
import importlib
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from strategies.embedding.shard.hashing import shard_of
from tests.support.assertions import assert_all_equal, raises
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows, embedding_of, one_hot_embedding
from tests.support.workers import shared_directory

keras = importlib.import_module(sys.argv[1])
DistributedEmbedding = embedding_of(sys.argv[1])
strategy = strategies.from_tf_config(num_replicas=int(sys.argv[2]) if len(sys.argv) > 2 else 1)
everyone = collectives_of(strategy)
rank, n = everyone.rank, everyone.size
every = strategy.num_replicas_in_sync  # so many gradients an id has in a step
random = np.random.default_rng(0)
IDS = np.array([-(2**63), -2, -1, 0, 1, 2**40, 2**63 - 1])
BATCH, WIDTH = 24, 3
everywhere = np.stack([random.permutation(np.tile(np.arange(len(IDS)), 4)) for _ in range(6)])
places = {
    "user": everywhere.reshape([-1, 2])[: 3 * BATCH],
    "item": everywhere[::-1].reshape([-1, 2])[: 3 * BATCH],
}
x = {name: IDS[each] for name, each in places.items()}
y = random.normal(size=[3 * BATCH, 1]).astype("float32")


def users_own():
    return keras.optimizers.SGD(0.05, momentum=0.5)


def models():
    return keras.optimizers.Adagrad(0.05)


def model_of(rows_of):
    inputs = {name: keras.Input([2], dtype="int64", name=name) for name in ("user", "item")}
    joined = keras.layers.Concatenate()(list(rows_of(inputs)))
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(joined))
    return keras.Model(inputs, outputs)


def fitted():
    """Returns a model of two tables that was trained, and its layer."""
    with strategy.scope():
        users = strategies.TableConfig(
            "users", WIDTH, embeddings_initializer="ones", optimizer=users_own()
        )
        items = strategies.TableConfig("items", WIDTH, len(IDS), "ones", placement="replicated")
        features = {
            "user": strategies.FeatureConfig(users),
            "item": strategies.FeatureConfig(items),
        }
        layer = DistributedEmbedding(features=features, name="tables")
        model = model_of(lambda inputs: layer(inputs).values())
        model.compile(models(), "mse")
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return model, layer


@functools.cache
def trained():
    """Is `fitted`, once for the checks that read it alone."""
    return fitted()


def check_a_table_with_an_optimizer_of_its_own_is_trained_by_it_and_all_else_by_the_models():
    """As two stock optimizers do that are each applied to their part of a stock model."""
    user_table, item_table = (one_hot_embedding(keras, len(IDS), WIDTH) for _ in range(2))
    stock = model_of(lambda x: [user_table(x["user"]), item_table(x["item"])])
    for each in (user_table, item_table):
        each.set_weights([np.ones([len(IDS), WIDTH])])
    of_users, of_others = users_own(), models()
    for start in range(0, 3 * BATCH, BATCH):
        part = {name: each[start : start + BATCH] for name, each in places.items()}
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((stock(part, training=True) - y[start : start + BATCH]) ** 2)
        variables = stock.trainable_variables
        gradients = tape.gradient(loss, variables)
        pairs = list(zip(gradients, variables, strict=True))
        of_users.apply_gradients([pair for pair in pairs if pair[1] is user_table.table])
        of_others.apply_gradients([pair for pair in pairs if pair[1] is not user_table.table])
    model, layer = trained()
    for name, table in (("users", user_table), ("items", item_table)):
        ids, rows = all_rows(strategy, layer, name)
        seen = np.isin(IDS, ids)
        np.testing.assert_array_equal(ids, IDS[seen])
        np.testing.assert_allclose(rows, table.get_weights()[0][seen], atol=1e-5, err_msg=name)
        assert not np.allclose(rows, 1.0, atol=1e-3), "nothing was trained"
    strategies.verify_equal(strategy, model.variables)


def check_each_optimizers_slot_variables_are_saved():
    _, layer = trained()
    saved = dict(layer.snapshot_rows())
    of_users = "1/slot/momentum" if sys.argv[1] == "keras" else "1/slot/m"
    assert {of_users, "0/slot/accumulator"} <= set(saved), set(saved)


def check_copies_are_the_same_on_all_workers():
    _, layer = trained()
    rows = layer({"user": IDS, "item": IDS})
    for copy in tf.split(everyone.all_gather(rows["item"]), n):
        np.testing.assert_array_equal(copy, rows["item"])


def check_what_is_exported_looks_up_as_the_model_does_where_tensorflow_alone_loads_it():
    model, _ = fitted()
    directory = shared_directory(strategy)
    test = {
        "user": np.array([[1, 5], [-(2**63), 77]]),
        "item": np.array([[0, 77], [-1, 2**63 - 1]]),
    }

    def served():
        """Returns what the model gives of `test` where it is exported and loaded."""
        with strategies.writing(directory / "served", strategy) as path:
            model.export(path)
        inputs = {name: tf.constant(each) for name, each in test.items()}
        # tf_keras's `export` takes a list, in the order of the names.
        is_list = keras.__name__ == "tf_keras"
        loaded = tf.saved_model.load(str(directory / "served"))
        return loaded.serve(tf.nest.flatten(inputs) if is_list else inputs).numpy()

    before = served()
    np.testing.assert_allclose(before, model(test, training=False), atol=1e-6)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    found = served()
    np.testing.assert_allclose(found, model(test, training=False), atol=1e-6)
    assert not np.allclose(found, before, atol=1e-3)


def layer_of(*arguments, **options):
    with strategy.scope():
        layer = DistributedEmbedding(*arguments, name="table", **options)
        layer.build(None)
    return layer


def step_of(layer):
    """Returns a function that takes a step with momentum; each id's gradient is 1."""
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
        optimizer.build(layer.trainable_variables)

    def replica(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    run = tf.function(
        lambda ids: strategy.run(replica, args=(ids,)),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    return lambda ids: run(tf.constant(ids, tf.int64))


SHARE = {"overflow": "share", "embeddings_initializer": "ones"}
many = np.arange(60)
new = np.arange(1000, 1020)


def sharing_layer():
    """Returns a layer of 7 ids that 60 came to, and its step."""
    layer = layer_of(2, 7, eviction=strategies.Eviction(age=1000), **SHARE)
    step = step_of(layer)
    step(many)
    return layer, step


@functools.cache
def shared():
    """Is `sharing_layer`'s layer, once for the checks that read it alone."""
    return sharing_layer()[0]


def check_ids_that_come_when_there_is_no_more_room_share_a_row():
    layer = shared()
    counted = layer.statistics()["table"]
    assert (counted["rows"], counted["new"]) == (7, 7), counted
    if every == n:
        assert counted["shared"] == 53, counted
    has_row = np.isin(many, all_rows(strategy, layer)[0])
    owners = shard_of(tf.constant(many), n).numpy()
    sharing = np.bincount(owners[~has_row], minlength=n)
    assert np.bincount(owners[has_row], minlength=n).tolist() == [
        7 // n + (worker < 7 % n) for worker in range(n)
    ]
    expected = np.where(has_row, 1 - every, -every * sharing[owners])
    np.testing.assert_array_equal(layer(many).numpy()[:, 0], expected)
    owners_of_new = shard_of(tf.constant(new), n).numpy()
    np.testing.assert_array_equal(layer(new).numpy()[:, 0], -every * sharing[owners_of_new])
    if n == 1:
        assert layer.rows()[0].tolist() == list(range(7)), "who came first has a row"


def check_a_shared_row_is_saved_with_its_slot_variables_and_goes_on():
    layer, step = sharing_layer()
    before = layer(many).numpy()
    directory = str(shared_directory(strategy) / "rows")
    layer.save_rows(directory)
    again, packed = (layer_of(2, 7, **SHARE) for _ in range(2))
    again.load_rows(directory)
    packed.restore_rows(layer.snapshot_rows())
    with strategy.scope():
        late = DistributedEmbedding(2, 7, name="table", **SHARE)
    late.restore_rows(layer.snapshot_rows())
    late.build(None)
    step(many)
    for each in (again, packed, late):
        step_of(each)(many)
    for each in (again, packed, late):
        np.testing.assert_array_equal(each(many), layer(many))
        assert each.statistics()["table"]["rows"] == 7
    assert not np.array_equal(layer(many).numpy()[:, 0], before[:, 0])


def check_a_shared_row_is_not_left_out_where_rows_are_loaded():
    directory = str(shared_directory(strategy) / "rows")
    shared().save_rows(directory)
    with raises(ValueError, "Set overflow='share'"):
        layer_of(2, 7).load_rows(directory)


def check_a_served_table_has_shared_rows():
    layer, directory = shared(), shared_directory(strategy)
    with strategies.writing(directory / "shared", strategy) as path:
        root = tf.Module()
        root.layer = layer
        root.look = tf.function(
            lambda ids: layer(ids), input_signature=[tf.TensorSpec([None], tf.int64)]
        )
        tf.saved_model.save(root, path)
    look = tf.saved_model.load(str(directory / "shared")).look
    ids = np.concatenate([many, new])
    np.testing.assert_array_equal(look(tf.constant(ids)), layer(ids))


def check_where_rows_were_taken_away_there_is_room_again():
    layer = layer_of(2, n, eviction=strategies.Eviction(count=10**6), **SHARE)
    step_of(layer)(many)
    assert layer.evict() == {"table": n}
    assert np.array_equal(layer(many).numpy(), np.ones([60, 2])), "unseen, where there is room"


def check_any_number_of_workers_reads_the_plain_files_that_any_number_has_written():
    layer, plain = shared(), str(shared_directory(strategy) / "plain")
    layer.export_rows(plain)
    assert len(list(Path(plain).iterdir())) == 2 * n
    other = layer_of(2, embeddings_initializer="zeros")
    other.import_rows(plain)
    assert_all_equal(all_rows(strategy, other), all_rows(strategy, layer))


def check_what_rows_are_not_exported_to():
    layer, plain = shared(), str(shared_directory(strategy) / "plain")
    layer.export_rows(plain)
    with raises(ValueError, "Empty it, or choose another"):
        layer.export_rows(plain)
    with raises(ValueError, "Received: 'csv'"):
        layer.export_rows(plain, format="csv")


def check_plain_files_of_others_are_read():
    foreign = shared_directory(strategy) / "foreign"
    if rank == 0:
        foreign.mkdir()
        np.save(foreign / "users-keys.npy", np.array([3, -3], np.int32))
        np.save(foreign / "users-values.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    strategies.barrier(strategy)
    layer = layer_of(2, embeddings_initializer="zeros")
    layer.import_rows(str(foreign))
    np.testing.assert_array_equal(layer(np.array([-3, 3, -4])).numpy(), [[3, 4], [1, 2], [0, 0]])


if __name__ == "__main__":
    run_checks(globals())
