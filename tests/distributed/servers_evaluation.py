"""evaluate and predict are of all rows on every worker, in each mode; variables are placed by path.

servers_evaluation.py keras|tf_keras MODE [REPLICAS]

All workers see the directory in which it is run.
"""

import importlib
import sys
import zlib

import numpy as np
import tensorflow as tf
from absl import logging

import strategies
from tests.support.assertions import raises
from tests.support.checks import run_checks

keras, mode = importlib.import_module(sys.argv[1]), sys.argv[2]
strategy = strategies.from_tf_config(
    options=[
        strategies.ReductionOptions(sum_rows=True),  # of a cluster without servers
        strategies.ParameterServerOptions(mode, placement="hash"),
    ],
    num_replicas=int(sys.argv[3]) if len(sys.argv) > 3 else None,
)
servers, workers = strategy.extended.servers, strategy.extended.workers
rank, size, in_step = workers.rank, workers.size, mode == "sync"
layers = keras.layers
x = np.random.default_rng(0).normal(size=[13, 4]).astype("float32")
y = (x[:, :1] > 0).astype("float32")


def made(learning_rate):
    model = keras.Sequential(
        [
            layers.InputLayer([4]),
            *[layers.Dense(4, "tanh", name=f"hidden_{number}") for number in range(8)],
            layers.Dense(1, "sigmoid", name="last"),
        ],
        name="model",
    )
    model.compile(keras.optimizers.SGD(learning_rate), "binary_crossentropy", metrics=["AUC"])
    return model


def batches(rows=13):
    return tf.data.Dataset.from_tensor_slices((x[:rows], y[:rows])).batch(5)


# Training does not change them.
one = made(0.0)
with strategy.scope():
    model = made(0.0)
one.set_weights(model.get_weights())


def evaluated(one):
    return one.evaluate(x, y, verbose=0)


def is_as_one_process(model, one, rows=13):
    """Compares arrays, datasets, what is repeated, one row for all workers."""
    steps = -(-rows // 5)
    expected = one.predict(x[:rows], verbose=0)
    np.testing.assert_allclose(model.predict(x[:rows], 5, verbose=0), expected, rtol=1e-5)
    np.testing.assert_allclose(model.predict(batches(rows), verbose=0), expected, rtol=1e-5)
    evaluated = one.evaluate(x[:rows], y[:rows], verbose=0)
    for found in (
        model.evaluate(x[:rows], y[:rows], batch_size=5, verbose=0),
        model.evaluate(batches(rows), verbose=0),
        model.evaluate(batches(rows).repeat(), steps=steps, verbose=0),
        model.evaluate(
            strategy.experimental_distribute_dataset(batches(rows)), steps=steps, verbose=0
        ),
    ):
        np.testing.assert_allclose(found, evaluated, rtol=1e-4, atol=1e-6)


def check_each_layer_goes_where_its_own_path_says():
    above = "model/" if sys.argv[1] == "keras" else ""
    for number in range(8):
        path = f"{above}hidden_{number}/kernel"
        line = f"{path} (4, 4): on ps {zlib.crc32(path.encode()) % len(servers)}"
        assert line in strategy.placement().splitlines(), (line, strategy.placement())


def check_all_examples_are_evaluated_on_every_worker():
    is_as_one_process(model, one)


def check_one_example_is_evaluated_on_every_worker():
    is_as_one_process(model, one, rows=1)


def check_validation_is_of_all_examples_whenever_a_worker_comes_to_it():
    """Training is of each worker's part."""
    epochs = 2 if in_step else 1 + 2 * rank
    loss, *_ = evaluated(one)
    validation = {"validation_data": (x, y), "validation_batch_size": 5}
    history = model.fit(x, y, batch_size=5, epochs=epochs, shuffle=False, verbose=0, **validation)
    assert len(history.history["val_loss"]) == epochs
    np.testing.assert_allclose(history.history["val_loss"], loss, rtol=1e-5)
    # A part of the rows may come near the loss of all of them by chance.
    tolerance = 1e-5 if in_step else 1e-7
    assert np.allclose(history.history["loss"], loss, rtol=tolerance, atol=0) == in_step, loss


def check_a_loop_of_ones_own_takes_the_workers_part():
    seen = sum(
        int(tf.reduce_sum(tf.shape(part)[0]))
        for batch, _ in strategy.experimental_distribute_dataset(batches())
        for part in strategy.experimental_local_results(batch)
    )
    assert seen < len(x), seen


def check_files_of_which_each_worker_trains_on_its_own_are_evaluated_whole():
    if rank == 0:
        for number in range(4):
            lines = [",".join(map(repr, row)) for row in np.hstack([x, y])[number::4].tolist()]
            with open(f"part-{number}", "w") as file:
                file.write("\n".join(lines) + "\n")
    strategies.barrier(strategy)

    def parsed(file):
        lines = tf.data.TextLineDataset(file)
        columns = lines.map(lambda line: tf.stack(tf.io.decode_csv(line, [0.0] * 5)))
        return columns.map(lambda row: (row[:4], row[4:]))

    files = strategies.read_files("part-*", strategy, 6, reader=parsed)
    found = model.evaluate(files, verbose=0)
    np.testing.assert_allclose(found, evaluated(one), rtol=1e-4, atol=1e-6)


def check_what_is_a_workers_alone_is_said():
    said = []
    logging.get_absl_logger().addFilter(lambda record: said.append(record.getMessage()) or True)
    own = strategy.distribute_datasets_from_function(
        lambda context: (
            batches().take(2).shard(context.num_input_pipelines, context.input_pipeline_id)
        )
    )
    predicted = model.predict(own, steps=1, verbose=0)
    assert len(predicted) == (10 if in_step else 5), len(predicted)
    count = sum(f"predict covers only the examples of worker {rank}," in line for line in said)
    assert count == (0 if in_step else 1), said


def trained():
    with strategy.scope():
        model = made(0.5)
    model.fit(batches(), epochs=3, verbose=0)
    strategies.barrier(strategy)
    one = made(0.0)
    one.set_weights(model.get_weights())
    return model, one


def check_nobody_waits_for_a_worker_that_does_something_else():
    model, one = trained()
    if rank == 0 and not in_step:
        is_as_one_process(model, one)


def check_nobody_waits_for_a_worker_that_has_ended():
    """This one is the last: all workers but the first leave."""
    trained_model, one_trained = trained()
    if rank > 0:
        return
    strategies.barrier(strategy)
    assert servers.present == [True] + [False] * (size - 1), servers.present
    if not in_step:
        is_as_one_process(trained_model, one_trained)
        return
    found = trained_model.evaluate(x, y, batch_size=5, verbose=0)
    np.testing.assert_allclose(found, evaluated(one_trained), rtol=1e-4, atol=1e-6)
    history = model.fit(batches(), validation_data=batches(), verbose=0)
    np.testing.assert_allclose(history.history["val_loss"], evaluated(one)[0], rtol=1e-5)
    ended = ", ".join(map(str, range(1, size)))
    with raises(RuntimeError, f"rank {ended} has ended. Call predict on all"):
        trained_model.predict(x, verbose=0)


if __name__ == "__main__":
    run_checks(globals())
