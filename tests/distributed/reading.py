"""Training from many files: as many steps on all workers, and the same weights.

reading.py keras|tf_keras [replicas a worker]

All workers see the directory in which it is run, and it is empty.
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
strategy = strategies.from_tf_config(num_replicas=replicas)
workers = strategy.num_replicas_in_sync // replicas
rank = strategy.extended._get_replica_id_in_sync_group(0) // replicas

# File i has i + 1 rows, so the workers' parts are uneven.
COUNTS = range(1, 7)
if rank == 0:
    row = 0
    for number, count in enumerate(COUNTS):
        with open(f"{number}.csv", "w") as file:
            for _ in range(count):
                file.write(f"{row},{row % 5},{row % 2}\n")
                row += 1
strategies.barrier(strategy)
per_worker = [sum(list(COUNTS)[r::workers]) for r in range(workers)]
per_step = [-(-count // 4) for count in per_worker]
every = list(range(sum(COUNTS)))


def rows(file):
    def parse(line):
        # Of unknown shape, which batches without rows must have, too.
        numbers = tf.strings.to_number(tf.strings.split(line, ","))
        return numbers, numbers[2:]

    return tf.data.TextLineDataset(file).map(parse)


def read(uneven, **options):
    return strategies.read_files(
        "*.csv", strategy, 4 * workers, reader=rows, uneven=uneven, seed=3, **options
    )


def seen(dataset):
    """Returns the numbers of the rows of an epoch, on all workers, and the steps."""
    found, steps = [], 0
    for x, _ in strategy.experimental_distribute_dataset(dataset):
        mine = tf.concat([part[:, 0] for part in strategy.experimental_local_results(x)], 0)
        found += collectives_of(strategy).all_gather(mine).numpy().tolist()
        steps += 1
    return sorted(map(int, found)), steps


def check_seeds_of_each_worker_and_loose_orders_give_each_example_once():
    """As Horovod's guides seed by rank, and as pipelines are made faster."""
    is_common = not hasattr(strategy.extended, "in_step") or strategy.extended.in_step
    numbers = tf.data.Dataset.range(64).map(lambda row: (tf.cast([row], tf.float32),) * 2)
    parts = tf.data.Dataset.range(4)
    loose = {"num_parallel_calls": 4, "deterministic": False}
    tf.random.set_seed(100 + rank)
    for dataset in (
        numbers.shuffle(64),
        numbers.shuffle(64, seed=7 + rank),
        parts.interleave(lambda part: numbers.shard(4, part), 4, **loose),
        numbers.shuffle(64).map(lambda x, y: (x + 0, y), **loose),
    ):
        rows, steps = seen(dataset.batch(8))
        assert (rows, steps) == (list(range(64)), 8) or not is_common, rows
    tf.random.set_seed(1)


def check_examples_in_another_order_on_each_worker_are_refused():
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    order = np.random.default_rng(rank).permutation(64)
    x = np.arange(64, dtype="float32")[order, np.newaxis]
    labels = order % 2
    listed = tf.data.Dataset.from_tensor_slices([f"{number}.png" for number in order]).batch(8)

    def late():
        """Yields batches of which the first one is the same."""
        rows = np.concatenate([np.arange(8), 8 + order[order < 56]])
        for row in np.split(rows[:, np.newaxis].astype("float32"), 8):
            yield row, row

    is_common = not hasattr(strategy.extended, "in_step") or strategy.extended.in_step
    for start in (
        lambda: model.fit(x, x, batch_size=8, verbose=0),
        lambda: model.fit(np.ones([64, 1]), labels, batch_size=8, verbose=0),
        lambda: model.predict(x, batch_size=8, verbose=0),
        lambda: list(strategy.experimental_distribute_dataset(listed)),
        lambda: model.fit(late(), verbose=0),
    ):
        try:
            start()
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            assert "examples of worker 1 that differ from those of worker 0" in str(error), error
        else:
            assert not is_common or workers == 1
    own = tf.data.Options()
    own.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    model.fit(
        tf.data.Dataset.from_tensor_slices((x, x)).batch(8).with_options(own), epochs=2, verbose=0
    )


def check_other_files_on_each_worker_are_refused():
    if workers == 1:
        return
    mine = [f"{number}.csv" for number in range(rank, len(COUNTS))]
    try:
        strategies.read_files(mine, strategy, 4 * workers, reader=rows)
    except ValueError as error:
        assert "6 files on worker 0, and 5 with other names on worker 1" in str(error), error
    else:
        raise AssertionError("Other files are taken for the same.")


def check_every_example_comes_once_where_some_steps_are_empty():
    assert seen(read("empty")) == (every, max(per_step))


def check_every_example_comes_once_where_examples_are_sharded():
    assert seen(read("empty", shard="rows"))[0] == every


def check_examples_are_cut_to_the_fewest_steps():
    found, steps = seen(read("cut"))
    assert steps == min(per_step)
    assert len(found) == len(set(found)) == sum(min(count, 4 * steps) for count in per_worker)


def check_examples_come_again_to_the_most_steps():
    found, steps = seen(read("resample"))
    assert steps == max(per_step)
    assert len(found) == 4 * workers * steps and sorted(set(found)) == every


def trains(uneven, steps):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.InputLayer([3]),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1, "sigmoid"),
            ]
        )
        model.compile("adam", "binary_crossentropy")
    history = model.fit(read(uneven), epochs=3, verbose=0).history
    assert len(history["loss"]) == 3 and np.isfinite(history["loss"]).all(), history
    taken = int(model.optimizer.iterations.numpy())
    assert taken == 3 * steps, (taken, 3 * steps)
    strategies.verify_equal(strategy, model.variables)


def check_training_where_some_steps_are_empty():
    trains("empty", max(per_step))


def check_training_cut_to_the_fewest_steps():
    trains("cut", min(per_step))


def check_training_to_the_most_steps():
    trains("resample", max(per_step))


if __name__ == "__main__":
    run_checks(globals())
