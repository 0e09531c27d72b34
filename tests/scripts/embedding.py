"""DistributedEmbedding on any number of workers and replicas follows stock layers in one process.

embedding.py keras|tf_keras [replicas a worker]
"""

import contextlib
import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies

keras = importlib.import_module(sys.argv[1])
module = f"strategies.embedding.{sys.argv[1]}_layer"
DistributedEmbedding = importlib.import_module(module).DistributedEmbedding
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
if replicas:
    strategy = strategies.from_tf_config(mode="sync", num_replicas=replicas)
    scope = strategy.scope
else:
    strategy, scope = tf.distribute.get_strategy(), contextlib.nullcontext
ROWS = 24 * 4
IDS = np.array([-(2**63), -3, -2, -1, 0, 1, 5, 2**40, 2**63 - 2, 2**63 - 1])
WIDTH = 4
random = np.random.default_rng(0)


class OneHot(keras.layers.Layer):
    """An embedding of the places of ids in IDS whose gradient is dense."""

    def build(self, shape):
        self.table = self.add_weight(name="t", shape=[len(IDS), WIDTH], initializer="zeros")

    def call(self, ids):
        return tf.matmul(tf.one_hot(ids, len(IDS)), tf.convert_to_tensor(self.table))


def model_of(embedding, optimizer, length):
    inputs = keras.Input([length], dtype="int64")
    outputs = keras.layers.Flatten()(embedding(inputs))
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(outputs)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, "mse")
    return model


def everyones(layer):
    """Returns all ids and their rows, of all workers."""
    ids, rows = layer.rows()
    everyone = strategies.collectives.workers.collectives_of(strategy)
    ids = everyone.all_gather(tf.constant(ids)).numpy()
    rows = everyone.all_gather(tf.constant(rows)).numpy()
    order = np.argsort(ids)
    return ids[order], rows[order]


def check(make_optimizer, places, batch_size):
    """Trains both on the same ids."""
    y = random.normal(size=[len(places), 1]).astype("float32")
    with scope():
        ours = DistributedEmbedding(WIDTH, name="ids", embeddings_initializer="normal")
        many = model_of(ours, make_optimizer(), places.shape[1])
    reference = OneHot()
    one = model_of(reference, make_optimizer(), places.shape[1])
    first = ours(IDS)  # evaluation: the rows to come
    assert len(ours.rows()[0]) == 0, "evaluation made rows"
    reference.set_weights([first.numpy()])
    options = {"batch_size": batch_size, "epochs": 2, "shuffle": False, "verbose": 0}
    expected = one.fit(places, y, **options).history["loss"]
    found = many.fit(IDS[places], y, **options).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=2e-4)
    ids, rows = everyones(ours)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_allclose(rows, reference.get_weights()[0], atol=2e-5)
    assert not np.allclose(rows, first, atol=1e-3), "nothing was trained"
    np.testing.assert_allclose(
        many.predict(IDS[places], verbose=0), one.predict(places, verbose=0), atol=2e-4
    )
    strategies.verify_equal(strategy, many.variables)
    unseen = np.array([77, -77])
    before = len(ours.rows()[0])
    np.testing.assert_array_equal(ours(unseen), ours(unseen))
    assert len(ours.rows()[0]) == before
    counted = ours.statistics()["ids"]
    assert counted["rows"] == counted["new"] == len(IDS)
    assert counted["lookups"] == 2 * places.size
    return ours


# Every id in every batch, several times: what an optimizer does to all rows it does to these.
batch = 24
everywhere = np.concatenate(
    [random.permutation(np.tile(np.arange(len(IDS)), 12)[: batch * 5]) for _ in range(4)]
).reshape([-1, 5])
for batch_rows in everywhere.reshape([4, -1]):
    assert set(batch_rows) == set(range(len(IDS)))
optimizers = [
    lambda: keras.optimizers.SGD(0.05),
    lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    lambda: keras.optimizers.Adagrad(0.05),
    lambda: keras.optimizers.Adam(0.01),
    lambda: keras.optimizers.RMSprop(0.001),
    lambda: keras.optimizers.Adadelta(0.1),
    lambda: keras.optimizers.Ftrl(0.05),
]
if hasattr(keras.optimizers, "Lion"):
    optimizers.append(lambda: keras.optimizers.Lion(0.001))
if replicas * strategy.num_replicas_in_sync > 1:  # the mechanism is the same for all
    optimizers = optimizers[:4]
if isinstance(strategy, strategies.ParameterServerStrategy):
    optimizers = [optimizers[0], *optimizers[2:4]]
    if strategy.num_replicas_in_sync == 1 and hasattr(keras.optimizers, "Lion"):  # of Keras 3
        optimizers.append(lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1))
for make_optimizer in optimizers:
    check(make_optimizer, everywhere, batch)
# Some ids in some batches: a row that is not touched has no gradient. Keras clips what each
# replica has, before it is summed.
clipnorm = 0.5 if strategy.num_replicas_in_sync == 1 else None
few = random.integers(0, 3, size=[96, 2]) + 3 * (np.arange(96) // 24)[:, np.newaxis]
few[few >= len(IDS)] = 9
check(lambda: keras.optimizers.Adagrad(0.05, clipnorm=clipnorm), few, batch)


class Unbuilt(keras.Model):
    """Keras 3 builds it in fit, from the shapes and dtypes of a batch."""

    def __init__(self):
        super().__init__()
        self.embedding = DistributedEmbedding(WIDTH, combiner="sum")
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.dense(self.embedding(inputs["ids"], training=training))


with scope():
    model = Unbuilt()
    model.compile("sgd", "mse")
model.fit({"ids": IDS[few]}, np.ones([96, 1]), batch_size=batch, verbose=0)
np.testing.assert_array_equal(everyones(model.embedding)[0], np.sort(IDS[np.unique(few)]))
print("passed")
