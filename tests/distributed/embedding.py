"""DistributedEmbedding on any number of workers and replicas follows stock layers in one process.

embedding.py keras|tf_keras [replicas a worker, or 0: no strategy]
"""

import contextlib
import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows, embedding_of, one_hot_embedding
from tests.support.reference import of_one_process

keras = importlib.import_module(sys.argv[1])
DistributedEmbedding = embedding_of(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
if replicas:
    strategy = strategies.from_tf_config(mode="sync", num_replicas=replicas)
    scope = strategy.scope
else:
    strategy, scope = tf.distribute.get_strategy(), contextlib.nullcontext
count = strategy.num_replicas_in_sync
is_alone = replicas * count <= 1
is_on_servers = isinstance(strategy, strategies.ParameterServerStrategy)
IDS = np.array([-(2**63), -3, -2, -1, 0, 1, 5, 2**40, 2**63 - 2, 2**63 - 1])
WIDTH, BATCH = 4, 24
random = np.random.default_rng(0)
# Every id in every batch, several times: what an optimizer does to all rows it does to these.
everywhere = np.concatenate(
    [random.permutation(np.tile(np.arange(len(IDS)), 12)[: BATCH * 5]) for _ in range(4)]
).reshape([-1, 5])
for batch_rows in everywhere.reshape([4, -1]):
    assert set(batch_rows) == set(range(len(IDS)))
# Some ids in some batches: a row that is not touched has no gradient.
few = random.integers(0, 3, size=[96, 2]) + 3 * (np.arange(96) // 24)[:, np.newaxis]
few[few >= len(IDS)] = 9
y = random.normal(size=[96, 1]).astype("float32")


def model_of(embedding, optimizer, length):
    inputs = keras.Input([length], dtype="int64")
    outputs = keras.layers.Flatten()(embedding(inputs))
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(outputs)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, "mse")
    return model


def follows_a_stock_layer(optimizer, *arguments, places=everywhere, **options):
    """Trains both on the same ids."""

    def make_optimizer():
        return getattr(keras.optimizers, optimizer)(*arguments, **options)

    with scope():
        ours = DistributedEmbedding(WIDTH, name="ids", embeddings_initializer="normal")
        many = model_of(ours, make_optimizer(), places.shape[1])
    first = ours(IDS)  # evaluation: the rows to come
    assert len(ours.rows()[0]) == 0, "evaluation made rows"
    fit = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}

    def train_a_stock_layer():
        reference = one_hot_embedding(keras, len(IDS), WIDTH)
        one = model_of(reference, make_optimizer(), places.shape[1])
        reference.set_weights([first.numpy()])
        losses = one.fit(places, y, **fit).history["loss"]
        return losses, reference.get_weights()[0], one.predict(places, verbose=0)

    expected, expected_rows, predicted = of_one_process(train_a_stock_layer)
    found = many.fit(IDS[places], y, **fit).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=2e-4)
    ids, rows = all_rows(strategy, ours)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_allclose(rows, expected_rows, atol=2e-5)
    assert not np.allclose(rows, first, atol=1e-3), "nothing was trained"
    np.testing.assert_allclose(many.predict(IDS[places], verbose=0), predicted, atol=2e-4)
    strategies.verify_equal(strategy, many.variables)
    unseen = np.array([77, -77])
    before = len(ours.rows()[0])
    np.testing.assert_array_equal(ours(unseen), ours(unseen))
    assert len(ours.rows()[0]) == before
    counted = ours.statistics()["ids"]
    assert counted["rows"] == counted["new"] == len(IDS)
    assert counted["lookups"] == 2 * places.size


def check_sgd():
    follows_a_stock_layer("SGD", 0.05)


def check_momentum():
    if not is_on_servers:
        follows_a_stock_layer("SGD", 0.01, momentum=0.9)


def check_adagrad():
    follows_a_stock_layer("Adagrad", 0.05)


def check_adam():
    follows_a_stock_layer("Adam", 0.01)


def check_adamw_on_servers():
    if is_on_servers and count == 1 and hasattr(keras.optimizers, "Lion"):  # of Keras 3
        follows_a_stock_layer("AdamW", 0.01, weight_decay=0.1)


# The mechanism is the same for all: the others where there is one replica.
def check_rmsprop():
    if is_alone and not is_on_servers:
        follows_a_stock_layer("RMSprop", 0.001)


def check_adadelta():
    if is_alone and not is_on_servers:
        follows_a_stock_layer("Adadelta", 10.0)


def check_ftrl():
    if is_alone and not is_on_servers:
        follows_a_stock_layer("Ftrl", 0.05)


def check_lion():
    if is_alone and not is_on_servers and hasattr(keras.optimizers, "Lion"):
        follows_a_stock_layer("Lion", 0.001)


def check_rows_that_a_batch_does_not_touch_have_no_gradient():
    """Keras clips what each replica has, before it is summed."""
    clipnorm = 0.5 if count == 1 else None
    follows_a_stock_layer("Adagrad", 0.05, clipnorm=clipnorm, places=few)


def check_a_model_that_is_built_in_fit():
    """Keras 3 builds it from the shapes and dtypes of a batch."""

    class Unbuilt(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = DistributedEmbedding(WIDTH, combiner="sum")
            self.dense = keras.layers.Dense(1)

        def call(self, inputs, training=None):
            return self.dense(self.embedding(inputs["ids"], training=training))

    with scope():
        model = Unbuilt()
        model.compile("sgd", "mse")
    model.fit({"ids": IDS[few]}, np.ones([96, 1]), batch_size=BATCH, verbose=0)
    np.testing.assert_array_equal(
        all_rows(strategy, model.embedding)[0], np.sort(IDS[np.unique(few)])
    )


if __name__ == "__main__":
    run_checks(globals())
