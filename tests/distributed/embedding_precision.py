"""Tables with rows in 16 bits, and exchanges in 16 bits, on any number of workers and servers.

embedding_precision.py MODE REPLICAS
"""

import contextlib
import sys

import keras
import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows
from tests.support.workers import shared_directory

mode, replicas = sys.argv[1], int(sys.argv[2])
strategy = strategies.from_tf_config(mode=mode, num_replicas=replicas)
everyone = collectives_of(strategy)
rank, n = everyone.rank, everyone.size
is_in_step = mode == "sync"
has_servers = getattr(strategy.extended, "servers", None) is not None
SHORT = {"row_dtype": "bfloat16", "slot_dtype": "bfloat16"}
WIDTH, BATCH, STEPS = 6, 8 * n * replicas, 12


class Trained:
    """A layer and its optimizer, under a strategy or in this process alone."""

    def __init__(self, under=None, **options):
        scope = contextlib.nullcontext() if under is None else under.scope()
        with scope:
            self.layer = strategies.DistributedEmbedding(WIDTH, name="table", **options)
            self.layer.build()
            self._optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
            self._optimizer.build(self.layer.trainable_variables)

        def replica(ids, slopes):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.layer(ids, training=True) * slopes[:, tf.newaxis])
            variables = self.layer.trainable_variables
            gradients = tape.gradient(loss, variables)
            self._optimizer.apply_gradients(zip(gradients, variables, strict=True))

        def step(ids, slopes):
            if under is None:
                return replica(ids, slopes)

            def part(ids, slopes):
                own = tf.distribute.get_replica_context().replica_id_in_sync_group
                return replica(ids[own :: n * replicas], slopes[own :: n * replicas])

            return under.run(part, args=(ids, slopes))

        self.step = tf.function(
            step,
            input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.float32)],
        )

    def train(self, start=0, stop=STEPS):
        # Small whole numbers, so that sums of gradients are exact in any order, in bfloat16, too.
        for number in range(start, stop):
            random = np.random.default_rng(number)
            ids = random.zipf(1.4, BATCH) % 50
            slopes = random.integers(-3, 4, BATCH).astype("float32")
            self.step(tf.constant(ids, tf.int64), tf.constant(slopes))
        # In "geo" no worker sends its changes before all have fetched their rows.
        everyone.all_gather(tf.constant([0]))
        return self

    def rows(self, under=strategy):
        strategies.barrier(strategy)
        if under is not None:
            return all_rows(under, self.layer)
        return self.layer.rows()


def check_rows_and_slots_are_those_of_one_process_to_the_bit():
    if not is_in_step:
        return
    for options in (SHORT, {"row_dtype": "bfloat16"}, {"slot_dtype": "bfloat16"}):
        together, alone = Trained(strategy, **options).train(), Trained(**options).train()
        np.testing.assert_array_equal(together.rows()[1], alone.rows(None)[1], str(options))
    exact = Trained().train()
    assert not np.array_equal(exact.rows(None)[1], alone.rows(None)[1])


def check_rows_are_stored_in_16_bits():
    trained = Trained(strategy, **SHORT).train()
    _, rows = trained.rows()
    bits = rows.view(np.uint32)
    assert (bits & 0xFFFF == 0).all() and len(np.unique(bits)) > 50
    # Rows and momentum have two bytes for each number; id, times and frequency have what they had.
    per_row = trained.layer.tables.table(None).store.row_bytes()
    plain = Trained(strategy).train(0, 1)
    assert plain.layer.tables.table(None).store.row_bytes() - per_row == 2 * 2 * WIDTH


def check_an_exchange_in_16_bits_takes_half_the_bytes_and_loses_nothing_that_16_bits_hold():
    short = Trained(strategy, row_dtype="bfloat16", exchange_dtype="bfloat16").train()
    exact = Trained(strategy, row_dtype="bfloat16").train()
    if is_in_step:
        np.testing.assert_array_equal(short.rows()[1], exact.rows()[1])
    halved, whole = (each.layer.statistics()["table"] for each in (short, exact))
    for name in ("bytes_rows", "bytes_gradients"):
        assert 2 * halved[name] == whole[name], (halved, whole)
        assert (whole[name] > 0) == (n > 1 or has_servers)
    assert halved["bytes_ids"] == whole["bytes_ids"]


def check_gradients_that_16_bits_do_not_hold_are_rounded_on_the_way_only():
    """Rows keep the digits that the exchange lacks."""
    options = {"embeddings_initializer": "zeros", "l2": 0.1}
    short = Trained(strategy, exchange_dtype="bfloat16", **options).train()
    exact = Trained(strategy, **options).train()
    if is_in_step or mode == "geo":
        np.testing.assert_allclose(short.rows()[1], exact.rows()[1], rtol=0.02, atol=2e-3)
    # In "geo" all workers train with the same part of a batch: a row is twice a number of 16 bits.
    if n > 1 and mode != "geo":
        assert (short.rows()[1].view(np.uint32) & 0xFFFF != 0).any()


def check_training_goes_on_from_saved_rows_with_the_same_bits():
    trained = Trained(strategy, **SHORT).train(0, 5)
    directory = str(shared_directory(strategy) / "rows")
    trained.layer.save_rows(directory)
    saved = trained.rows()[1]
    exact = Trained(strategy)
    exact.layer.load_rows(directory)
    np.testing.assert_array_equal(exact.rows()[1], saved)
    resumed = Trained(strategy, **SHORT)
    resumed.layer.load_rows(directory)
    np.testing.assert_array_equal(resumed.rows()[1], saved)
    if is_in_step:
        expected = trained.train(5).rows()[1]
        np.testing.assert_array_equal(resumed.train(5).rows()[1], expected)


def check_tables_of_different_dtypes_are_in_one_layer():
    tables = {
        "short": strategies.TableConfig("short", WIDTH, **SHORT),
        "exact": strategies.TableConfig("exact", WIDTH),
        "sent": strategies.TableConfig("sent", WIDTH, exchange_dtype="bfloat16"),
    }
    with strategy.scope():
        inputs = {name: keras.Input([2], dtype="int64", name=name) for name in tables}
        features = {name: strategies.FeatureConfig(one, "sum") for name, one in tables.items()}
        layer = strategies.DistributedEmbedding(features=features)
        outputs = keras.layers.Concatenate()(list(layer(inputs).values()))
        model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
        model.compile("adam", "mse")
    x = {name: np.random.default_rng(0).integers(0, 20, [4 * BATCH, 2]) for name in tables}
    logs = model.fit(x, np.ones([4 * BATCH, 1]), batch_size=BATCH, epochs=3, verbose=0).history
    assert logs["loss"][-1] < logs["loss"][0]
    strategies.barrier(strategy)
    for name in tables:
        bits = all_rows(strategy, layer, name)[1].view(np.uint32)
        assert (bits & 0xFFFF == 0).all() == (name == "short"), name


if __name__ == "__main__":
    run_checks(globals())
