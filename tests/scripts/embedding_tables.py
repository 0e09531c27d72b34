"""Tables on any number of workers: own optimizers, copies, shared rows, plain files, and serving.

embedding_tables.py keras|tf_keras [replicas a worker]
"""

import importlib
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from strategies.embedding.shard.hashing import shard_of

keras = importlib.import_module(sys.argv[1])
module = f"strategies.embedding.{sys.argv[1]}_layer"
DistributedEmbedding = importlib.import_module(module).DistributedEmbedding
strategy = strategies.from_tf_config(num_replicas=int(sys.argv[2]) if len(sys.argv) > 2 else 1)
everyone = collectives_of(strategy)
rank, n = everyone.rank, everyone.size
random = np.random.default_rng(0)
IDS = np.array([-(2**63), -2, -1, 0, 1, 2**40, 2**63 - 1])
BATCH, WIDTH = 24, 3


def shared_directory():
    name = tempfile.mkdtemp() if rank == 0 else ""
    code = tf.io.decode_raw([name.ljust(80)], tf.uint8)
    return Path(bytes(everyone.broadcast(code).numpy().tolist()[0]).decode().strip())


def everyones(layer, table):
    ids, rows = (everyone.all_gather(tf.constant(each)).numpy() for each in layer.rows(table))
    order = np.argsort(ids)
    return ids[order], rows[order]


# A table with an optimizer of its own is trained by it, all else by the model's: as two stock
# optimizers do that are each applied to their part of a stock model.
class OneHot(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(name="t", shape=[len(IDS), WIDTH], initializer="zeros")

    def call(self, ids):
        return tf.matmul(tf.one_hot(ids, len(IDS)), tf.convert_to_tensor(self.table))


def own():
    return keras.optimizers.SGD(0.05, momentum=0.5)


def models():
    return keras.optimizers.Adagrad(0.05)


def model_of(rows_of):
    inputs = {name: keras.Input([2], dtype="int64", name=name) for name in ("user", "item")}
    joined = keras.layers.Concatenate()(list(rows_of(inputs)))
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(joined))
    return keras.Model(inputs, outputs)


with strategy.scope():
    users = strategies.TableConfig("users", WIDTH, embeddings_initializer="ones", optimizer=own())
    items = strategies.TableConfig("items", WIDTH, len(IDS), "ones", placement="replicated")
    features = {
        "user": strategies.FeatureConfig(users),
        "item": strategies.FeatureConfig(items),
    }
    layer = DistributedEmbedding(features=features, name="tables")
    model = model_of(lambda inputs: layer(inputs).values())
    model.compile(models(), "mse")
user_table, item_table = OneHot(), OneHot()
stock = model_of(lambda x: [user_table(x["user"]), item_table(x["item"])])
for each in (user_table, item_table):
    each.set_weights([np.ones([len(IDS), WIDTH])])
everywhere = np.stack([random.permutation(np.tile(np.arange(len(IDS)), 4)) for _ in range(6)])
places = {
    "user": everywhere.reshape([-1, 2])[: 3 * BATCH],
    "item": everywhere[::-1].reshape([-1, 2])[: 3 * BATCH],
}
x = {name: IDS[each] for name, each in places.items()}
y = random.normal(size=[3 * BATCH, 1]).astype("float32")
of_users, of_others = own(), models()
for start in range(0, 3 * BATCH, BATCH):
    part = {name: each[start : start + BATCH] for name, each in places.items()}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((stock(part, training=True) - y[start : start + BATCH]) ** 2)
    variables = stock.trainable_variables
    gradients = tape.gradient(loss, variables)
    pairs = list(zip(gradients, variables, strict=True))
    of_users.apply_gradients([pair for pair in pairs if pair[1] is user_table.table])
    of_others.apply_gradients([pair for pair in pairs if pair[1] is not user_table.table])
model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
for name, table in (("users", user_table), ("items", item_table)):
    ids, rows = everyones(layer, name)
    seen = np.isin(IDS, ids)
    np.testing.assert_array_equal(ids, IDS[seen])
    np.testing.assert_allclose(rows, table.get_weights()[0][seen], atol=1e-5, err_msg=name)
    assert not np.allclose(rows, 1.0, atol=1e-3), "nothing was trained"
strategies.verify_equal(strategy, model.variables)
saved = dict(layer.snapshot_rows())
of_users = "1/slot/momentum" if sys.argv[1] == "keras" else "1/slot/m"
assert {of_users, "0/slot/accumulator"} <= set(saved), set(saved)
everywhere = layer({"user": IDS, "item": IDS})
for copy in tf.split(everyone.all_gather(everywhere["item"]), n):
    np.testing.assert_array_equal(copy, everywhere["item"])

# What is exported looks up as the model does, in what TensorFlow alone loads.
directory = shared_directory()
test = {"user": np.array([[1, 5], [-(2**63), 77]]), "item": np.array([[0, 77], [-1, 2**63 - 1]])}


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


# Ids that come when there is no more room share a row.
def layer_of(*arguments, **options):
    with strategy.scope():
        layer = DistributedEmbedding(*arguments, name="table", **options)
        layer.build(None)
    return layer


functions = {}


def step(layer, ids):
    if layer not in functions:
        with strategy.scope():
            optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
            optimizer.build(layer.trainable_variables)

        def replica(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids, training=True))
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

        signature = [tf.TensorSpec([None], tf.int64)]
        functions[layer] = tf.function(
            lambda ids: strategy.run(replica, args=(ids,)), input_signature=signature
        )
    functions[layer](tf.constant(ids, tf.int64))


rule = {"overflow": "share", "embeddings_initializer": "ones"}
every = strategy.num_replicas_in_sync  # so many gradients an id has in a step
layer = layer_of(2, 7, eviction=strategies.Eviction(age=1000), **rule)
many = np.arange(60)
step(layer, many)
counted = layer.statistics()["table"]
assert (counted["rows"], counted["new"]) == (7, 7), counted
if every == n:
    assert counted["shared"] == 53, counted
has_row = np.isin(many, everyones(layer, None)[0])
owners = shard_of(tf.constant(many), n).numpy()
sharing = np.bincount(owners[~has_row], minlength=n)
assert np.bincount(owners[has_row], minlength=n).tolist() == [
    7 // n + (worker < 7 % n) for worker in range(n)
]
expected = np.where(has_row, 1 - every, -every * sharing[owners])
np.testing.assert_array_equal(layer(many).numpy()[:, 0], expected)
new = np.arange(1000, 1020)
owners_of_new = shard_of(tf.constant(new), n).numpy()
np.testing.assert_array_equal(layer(new).numpy()[:, 0], -every * sharing[owners_of_new])
if n == 1:
    assert layer.rows()[0].tolist() == list(range(7)), "who came first has a row"
# It is saved, with what the optimizer keeps of it; and it goes on.
layer.save_rows(str(directory / "rows"))
again, packed = (layer_of(2, 7, **rule) for _ in range(2))
again.load_rows(str(directory / "rows"))
packed.restore_rows(layer.snapshot_rows())
with strategy.scope():
    late = DistributedEmbedding(2, 7, name="table", **rule)
late.restore_rows(layer.snapshot_rows())
late.build(None)
for each in (layer, again, packed, late):
    step(each, many)
for each in (again, packed, late):
    np.testing.assert_array_equal(each(many), layer(many))
    assert each.statistics()["table"]["rows"] == 7
assert not np.array_equal(layer(many).numpy()[:, 0], expected)
try:
    layer_of(2, 7).load_rows(str(directory / "rows"))
except ValueError as error:
    assert "Choose overflow='share'" in str(error), error
else:
    raise AssertionError("a shared row was left out")
# A served table has them as well.
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
# Where rows were taken away there is room again.
room = layer_of(2, n, eviction=strategies.Eviction(count=10**6), **rule)
step(room, many)
assert room.evict() == {"table": n}
assert np.array_equal(room(many).numpy(), np.ones([60, 2])), "unseen, where there is room"

# Plain files: any number of workers reads what any number has written.
plain = str(directory / "plain")
layer.export_rows(plain)
assert len(list(Path(plain).iterdir())) == 2 * n
other = layer_of(2, embeddings_initializer="zeros")
other.import_rows(plain)
for found, expected in zip(everyones(other, None), everyones(layer, None), strict=True):
    np.testing.assert_array_equal(found, expected)
for wrong, message in (
    (lambda: layer.export_rows(plain), "Empty it, or name another"),
    (lambda: layer.export_rows(plain, format="csv"), "Received: 'csv'"),
):
    try:
        wrong()
    except ValueError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
strategies.barrier(strategy)
if rank == 0:
    foreign = directory / "foreign"
    foreign.mkdir()
    np.save(foreign / "users-keys.npy", np.array([3, -3], np.int32))
    np.save(foreign / "users-values.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
strategies.barrier(strategy)
other.import_rows(str(directory / "foreign"))
np.testing.assert_array_equal(other(np.array([-3, 3, -4])).numpy(), [[3, 4], [1, 2], [0, 0]])
strategies.barrier(strategy)
print("passed")
