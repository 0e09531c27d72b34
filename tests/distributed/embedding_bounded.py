"""Tables that evict rows during training, on any number of workers and servers.

embedding_bounded.py MODE REPLICAS

Each occurrence of an id takes (1, id) from its row. So a row with another's gradient is recognized,
whatever else it has lost.
"""

import sys
import time

import keras
import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from strategies.embedding.shard.hashing import shard_of
from tests.support.assertions import raises
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows
from tests.support.workers import shared_directory

mode, replicas = sys.argv[1], int(sys.argv[2])
# Workers that train rows themselves refuse tables that evict rows in a step.
options = {"geo_rows": "servers"} if mode == "geo" else {}
strategy = strategies.from_tf_config(mode=mode, num_replicas=replicas, **options)
everyone = collectives_of(strategy)
rank, n = everyone.rank, everyone.size
# Where workers do not go in step, the steps of all of them are counted.
every = 1 if mode == "sync" else n
ROOM = 64


def trained(**options):
    """Returns a layer, and a function that does a step with ids of this worker."""
    with strategy.scope():
        layer = strategies.DistributedEmbedding(
            2, embeddings_initializer="zeros", name="table", **options
        )
        layer.build()
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)

    def replica(ids):
        own = tf.distribute.get_replica_context().replica_id_in_sync_group % replicas
        ids = ids[own::replicas]
        slopes = tf.cast(tf.stack([tf.ones_like(ids), ids], 1), tf.float32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True) * slopes)
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    run = tf.function(
        lambda ids: strategy.run(replica, args=(ids,)),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    return layer, lambda ids: run(tf.constant(ids, tf.int64))


def occurrences(layer):
    """Returns how often each id was trained since it got its row, by the two columns alike."""
    ids, rows = all_rows(strategy, layer)
    np.testing.assert_array_equal(rows[:, 1], rows[:, 0] * ids)
    assert (rows[:, 0] == np.round(rows[:, 0])).all() and (rows[:, 0] <= 0).all(), rows
    return dict(zip(ids.tolist(), (-rows[:, 0]).tolist(), strict=True))


def check_a_stream_stays_within_the_limit_and_no_row_has_anothers_gradient():
    for rule in (None, strategies.Eviction(policy="lfu")):
        layer, step = trained(input_dim=ROOM, overflow="evict", eviction=rule)
        random = np.random.default_rng(rank)
        steps = 30
        for number in range(steps):
            step((random.zipf(1.5, 4 * replicas) + 5 * number) % (10 * ROOM))
            if number % 10 == 9:
                assert layer.statistics()["table"]["rows"] <= ROOM
        strategies.barrier(strategy)
        found = occurrences(layer)
        counted = layer.statistics()["table"]
        assert counted["rows"] == len(found) == counted["new"] - counted["evicted"], counted
        assert counted["evicted"] > 0 and len(found) > ROOM // 2, counted
        assert sum(found.values()) <= counted["lookups"] == steps * 4 * replicas * n, counted


def check_a_gradient_is_of_the_row_that_was_looked_up_whoever_has_its_place():
    """Each shard has room for one id, and another one of the same shard comes in between."""
    servers = getattr(strategy.extended, "servers", None)
    shards = n if servers is None else len(servers)
    owners = shard_of(tf.range(100, dtype=tf.int64), shards).numpy()
    first, second = np.flatnonzero(owners == owners[0])[:2].tolist()
    with strategy.scope():
        layer = strategies.DistributedEmbedding(
            2, shards, embeddings_initializer="zeros", overflow="evict", name="table"
        )
        layer.build()
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)

    def replica(others):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([first]), training=True))
        for other in others:
            layer(tf.constant([other]), training=True)
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    run = tf.function(lambda others: strategy.run(replica, args=(others,)))
    for others, expected in (([second], {0.0}), ([], {-1.0 * n * replicas})):
        run(others)
        strategies.barrier(strategy)
        ids, rows = all_rows(strategy, layer)
        assert set(rows[:, 0].tolist()) == expected, (ids, rows)


def check_what_was_evicted_is_not_in_a_delta():
    layer, step = trained(input_dim=ROOM, overflow="evict")
    directory = str(shared_directory(strategy) / "rows")
    for _ in range(3):
        step(np.arange(4 * replicas) + 100 * rank)
    layer.save_rows(directory)
    for number in range(30):
        step(np.arange(4 * replicas) + 1000 * (rank + 1) + 4 * replicas * number)
    layer.save_rows(directory, delta=True)
    before = occurrences(layer)
    again, step_again = trained(input_dim=ROOM, overflow="evict")
    again.load_rows(directory)
    assert occurrences(again) == before and not set(before) & set(range(4 * replicas))
    step_again(np.arange(4 * replicas) + 100 * rank)
    strategies.barrier(strategy)
    after = occurrences(again)
    assert len(after) <= ROOM and {after[one + 100 * rank] for one in range(4 * replicas)} == {1.0}


def check_rows_are_evicted_every_few_steps_of_fit():
    """In fit, and where workers are in step, as many as in closed form."""
    age = 4 * every
    with strategy.scope():
        rule = strategies.Eviction(age=age, every=2 * every)
        layer = strategies.DistributedEmbedding(1, combiner="sum", eviction=rule, name="table")
        ids = keras.Input([1], dtype="int64")
        model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
        model.compile("sgd", "mse")
    batch, steps = 2 * replicas * n, 11
    rows = steps * batch
    model.fit(
        np.arange(rows)[:, np.newaxis], np.ones([rows, 1]), batch_size=batch, shuffle=False,
        verbose=0,
    )  # fmt: skip
    strategies.barrier(strategy)
    counted = layer.statistics()["table"]
    assert counted["new"] == rows and counted["evicted"] == rows - counted["rows"] > 0, counted
    if every == 1:
        # Before the last step, after ten, those of the first six.
        assert all_rows(strategy, layer)[0].tolist() == list(range(6 * batch, rows))


def check_rows_are_evicted_by_the_clock():
    layer, step = trained(eviction=strategies.Eviction(seconds=1.0, every=1))
    mine = 10 * (rank + 1) + np.arange(replicas)
    step(mine)
    strategies.barrier(strategy)
    time.sleep(1.2)
    step(mine + 1000)
    strategies.barrier(strategy)
    assert not set(all_rows(strategy, layer)[0].tolist()) & set(mine.tolist())
    directory = str(shared_directory(strategy) / "clock")
    layer.save_rows(directory)
    time.sleep(1.2)
    again, _ = trained(eviction=strategies.Eviction(seconds=1.0))
    again.load_rows(directory)
    there = len(all_rows(strategy, again)[0])
    assert again.evict() == {"table": there} and there > 0


def check_a_step_with_too_many_ids_is_an_error_on_all_workers():
    """The last of the checks: a step that fails may leave the workers in different operations."""
    _, step = trained(input_dim=ROOM, overflow="evict")
    with raises(tf.errors.InvalidArgumentError, "ids without room for input_dim"):
        step(np.arange(4 * ROOM))


if __name__ == "__main__":
    run_checks(globals())
