"""Training from many files: as many steps on all workers, and the same weights.

reading.py keras|tf_keras DIRECTORY [replicas a worker]
"""

import importlib
import os
import sys

import numpy as np
import tensorflow as tf

import strategies

keras = importlib.import_module(sys.argv[1])
directory = sys.argv[2]
replicas = int(sys.argv[3]) if len(sys.argv) > 3 else 1
strategy = strategies.from_tf_config(num_replicas=replicas)
workers = strategy.num_replicas_in_sync // replicas
rank = strategy.extended._get_replica_id_in_sync_group(0) // replicas

# File i has i + 1 rows, so the workers' parts are uneven.
COUNTS = range(1, 7)
if rank == 0:
    row = 0
    for number, count in enumerate(COUNTS):
        with open(os.path.join(directory, f"{number}.csv"), "w") as file:
            for _ in range(count):
                file.write(f"{row},{row % 5},{row % 2}\n")
                row += 1
strategies.barrier(strategy)


def rows(file):
    def parse(line):
        numbers = tf.stack(tf.io.decode_csv(line, [0.0] * 3))
        return numbers, numbers[2:]

    return tf.data.TextLineDataset(file).map(parse)


def read(uneven, **options):
    return strategies.read_files(
        os.path.join(directory, "*.csv"),
        strategy,
        4 * workers,
        reader=rows,
        uneven=uneven,
        seed=3,
        **options,
    )


def seen(dataset):
    """Returns the numbers of the rows of an epoch, on all workers, and the steps."""
    found, steps = [], 0
    for x, _ in strategy.experimental_distribute_dataset(dataset):
        mine = tf.concat([part[:, 0] for part in strategy.experimental_local_results(x)], 0)
        found += (
            strategies.collectives.workers.collectives_of(strategy)
            .all_gather(mine)
            .numpy()
            .tolist()
        )
        steps += 1
    return sorted(map(int, found)), steps


per_worker = [sum(list(COUNTS)[r::workers]) for r in range(workers)]
per_step = [-(-count // 4) for count in per_worker]
every = list(range(sum(COUNTS)))
assert seen(read("empty")) == (every, max(per_step))
assert seen(read("empty", shard="rows"))[0] == every
found, steps = seen(read("cut"))
assert steps == min(per_step)
assert len(found) == len(set(found)) == sum(min(count, 4 * steps) for count in per_worker)
found, steps = seen(read("resample"))
assert steps == max(per_step)
assert len(found) == 4 * workers * steps and sorted(set(found)) == every

for uneven in ("empty", "cut", "resample"):
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
    expected = 3 * (min(per_step) if uneven == "cut" else max(per_step))
    taken = int(model.optimizer.iterations.numpy())
    assert taken == expected, (uneven, taken, expected)
    strategies.verify_equal(strategy, model.variables)
print("passed")
