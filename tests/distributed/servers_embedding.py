"""An embedding's rows on the servers, in closed form: no change is lost, whoever waits for whom.

servers_embedding.py MODE STEPS [other options of ParameterServerStrategy as JSON]

Each step of a worker takes 1 from the row of an id of its own, and 2 from a row of all workers.
All workers see the directory in which it is run, and it is empty.
"""

import functools
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.single_worker import single_worker_scope
from tests.support.assertions import raises
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows

mode, steps = sys.argv[1], int(sys.argv[2])
options = json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
strategy = strategies.from_tf_config(mode=mode, **options)
rank, size = strategy.extended.workers.rank, strategy.extended.workers.size
COMMON = -(2**63)
MINE = [100 + worker for worker in range(size)]
ids = np.array([COMMON, *MINE, 5])
expected = np.array([-2 * steps * size, *[-steps] * size, 0])


def built():
    layer = strategies.DistributedEmbedding(
        3,
        embeddings_initializer="zeros",
        eviction=strategies.Eviction(count=steps + 1),
        name="embedding",
    )
    layer.build()
    return layer


def made(**momentum):
    """Returns a layer, and a function that takes 1 from the row of each id."""
    with strategy.scope():
        layer = built()
        optimizer = keras.optimizers.SGD(1.0, **momentum)
        optimizer.build(layer.trainable_variables)
    (variable,) = layer.trainable_variables

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids):
        def replica(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids, training=True))
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

        strategy.run(replica, args=(ids,))

    return layer, step


def fitted():
    layer, step = made()
    for _ in range(steps):
        step(tf.constant([COMMON, MINE[rank], COMMON], tf.int64))
    strategies.barrier(strategy)
    return layer


@functools.cache
def trained():
    """Is `fitted`, once for the checks that read it alone."""
    return fitted()


def check_no_change_is_lost():
    layer = trained()
    np.testing.assert_array_equal(layer(ids).numpy(), np.tile(expected[:, np.newaxis], 3))
    (counted,) = layer.statistics().values()
    assert (counted["rows"], counted["new"]) == (size + 1, size + 1), counted
    assert counted["lookups"] == 3 * steps * size, counted


def check_rows_are_counted_after_they_were_read():
    layer = trained()
    layer.get_weights()
    (counted,) = layer.rows_by_owner().values()
    assert sum(counted.values()) == size + 1, counted


def check_each_row_is_in_one_workers_part():
    assert all_rows(strategy, trained())[0].tolist() == [COMMON, *MINE]


def check_what_is_saved_is_of_one_moment():
    """And has the rows that are evicted after."""
    layer = fitted()
    layer.save_rows("rows")
    assert layer.evict() == {layer.name: size}
    np.testing.assert_array_equal(layer(np.array(MINE)).numpy(), 0.0)
    with strategy.scope():
        again = strategies.DistributedEmbedding(3, embeddings_initializer="zeros", name=layer.name)
        again.build()
    again.load_rows("rows")
    np.testing.assert_array_equal(again(ids).numpy(), np.tile(expected[:, np.newaxis], 3))
    assert len(os.listdir("rows")) == 2


def rows_by_writer(directory):
    """Returns how many rows workers and servers have written to the last save of a directory."""
    counts = {"worker": 0, "server": 0}
    for file in sorted(Path(directory).glob("*/table0-worker*-ids.npy")):
        counts["server" if "." in file.name.split("-")[1] else "worker"] += len(np.load(file))
    return counts


def check_servers_write_their_rows_where_they_see_the_directory():
    layer = trained()
    for name in ("by_servers", "by[workers]"):
        layer.save_rows(name)
    strategies.barrier(strategy)
    assert rows_by_writer("by_servers") == {"worker": 0, "server": size + 1}
    assert rows_by_writer("by[workers]") == {"worker": size + 1, "server": 0}
    with strategy.scope():
        again = strategies.DistributedEmbedding(3, embeddings_initializer="zeros", name=layer.name)
        again.build()
    for name in ("by[workers]", "by_servers"):
        again.load_rows(name)
        np.testing.assert_array_equal(again(ids).numpy(), np.tile(expected[:, np.newaxis], 3))
    strategies.barrier(strategy)
    if rank == 0:
        damaged = next(Path("by_servers").glob("*/table0-worker*.*-rows.npy"))
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    strategies.barrier(strategy)
    # The error is raised by the worker that verifies the file, and on the others.
    with raises((ValueError, RuntimeError), "with other bytes than were written"):
        again.load_rows("by_servers")


def graphs_to_load(tables):
    """Returns how many graphs a load adds to each server for a layer with tables of one width."""
    features = {
        f"{number}": strategies.FeatureConfig(strategies.TableConfig(f"{number}", 2))
        for number in range(tables)
    }
    with strategy.scope():
        layer, again = (strategies.DistributedEmbedding(features=features) for _ in range(2))
        for each in (layer, again):
            each.build()
    for name in features:
        layer.set_rows(np.arange(9), np.ones([9, 2], np.float32), name)
    layer.save_rows(f"of_{tables}")
    shards = again.tables._shards
    before = [len(shard._server._built) for shard in shards]
    again.load_rows(f"of_{tables}")
    return [len(shard._server._built) - count for shard, count in zip(shards, before, strict=True)]


def check_tables_of_a_width_share_the_graphs_of_a_load():
    assert graphs_to_load(4) == graphs_to_load(2)


def check_what_is_loaded_is_saved_again_before_an_optimizer_is_made():
    layer, step = made(momentum=0.5)
    step(tf.constant([COMMON, MINE[rank]], tf.int64))
    layer.save_rows("with_momentum")
    without, _ = made()
    without.save_rows("without")
    with strategy.scope():
        again = built()
    again.load_rows("with_momentum")
    again.save_rows("again")
    arrays = again.snapshot_rows()
    ordered = np.argsort(arrays["0/ids"])
    np.testing.assert_array_equal(arrays["0/ids"][ordered], [COMMON, *MINE])
    assert (arrays["0/slot/momentum"] < 0).all(), arrays
    again.load_rows("without")
    assert "0/slot/momentum" not in again.snapshot_rows()


def check_one_worker_alone_changes_nothing_that_is_of_all_of_them():
    layer = trained()
    if size > 1:
        message = "rows of the parameter servers. Received: a callback"
        with single_worker_scope(), raises(ValueError, message):
            layer.statistics()


def check_a_step_of_a_program_sees_the_steps_before_it():
    if mode not in ("sync", "half_async"):
        return
    layer, step = made()
    strategies.barrier(strategy)

    @tf.function
    def several(ids):
        seen = tf.zeros([0])
        for _ in range(4):
            seen = tf.concat([seen, layer(ids)[:, 0]], 0)
            step(ids)
        return seen

    seen = several(tf.constant([MINE[rank]], tf.int64)).numpy()
    np.testing.assert_array_equal(seen, [0, -1, -2, -3])


def check_what_servers_do_not_have_is_refused_when_a_layer_is_made():
    for other in ({"optimizer": "sgd"}, {"input_dim": 5, "overflow": "share"}):
        with raises(ValueError, "Omit them, or start the job without --ps"):
            with strategy.scope():
                strategies.DistributedEmbedding(3, **other)


if __name__ == "__main__":
    run_checks(globals())
