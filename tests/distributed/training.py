"""What users do with a model: fit with validation data, evaluate, predict, uneven data.

training.py keras|tf_keras [replicas a worker]
"""

import importlib
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_equal, assert_same_everywhere, raises
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
strategy = strategies.from_tf_config(num_replicas=replicas)
workers = strategy.num_replicas_in_sync // replicas
rank = strategy.extended._get_replica_id_in_sync_group(0)
random = np.random.default_rng(0)
# 97 rows in batches of 16: with 3 workers the parts are uneven, and of the last batch's only
# row two workers get none.
x = random.normal(size=[97, 5]).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


def plain_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer([5]),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )


def regularized_model():
    """Batch normalization takes the mean of no rows, where a replica has none."""
    return keras.Sequential(
        [
            keras.layers.InputLayer([5]),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Activation("relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )


def compiled(make_optimizer=lambda: "sgd", **options):
    with strategy.scope():
        model = regularized_model()
        options = {"metrics": ["accuracy"], **options}
        model.compile(make_optimizer(), "binary_crossentropy", **options)
    return model


def check_a_step_exchanges_gradients_loss_and_moving_averages_alone():
    """What is looked at while a step is traced, such as the metrics' variables, costs nothing."""
    model = compiled(metrics=[])
    collectives = strategy.extended.collectives
    each_has_rows = dataset.repeat()

    def begun():
        if collectives.size == 1:
            return 0
        in_python = vars(collectives)["_operations"].begun()[1]
        records = vars(collectives)["_graph_operations"].values()
        return in_python + sum(record.counts()[0] for record in records)

    def exchanges_of(steps):
        before = begun()
        model.fit(each_has_rows, steps_per_epoch=steps, epochs=1, verbose=0)
        return begun() - before

    exchanges_of(2)  # traces the step
    gradients = mean_of_the_batch = variance_of_the_batch = 1
    loss = 0 if keras.__name__ == "tf_keras" else 1  # tf_keras takes it from the merged metric
    each_step = gradients + loss + mean_of_the_batch + variance_of_the_batch
    if collectives.size == 1:
        each_step = 0
    few = exchanges_of(2)
    assert exchanges_of(7) - few == 5 * each_step


def check_evaluation_and_prediction_give_the_numbers_of_one_process():
    one = plain_model()
    with strategy.scope():
        many = plain_model()
    many.set_weights(one.get_weights())
    metrics = lambda: ["accuracy", keras.metrics.AUC()]  # noqa: E731
    one.compile("sgd", "binary_crossentropy", metrics=metrics())
    with strategy.scope():
        many.compile("sgd", "binary_crossentropy", metrics=metrics())
    shared = [
        np.asarray(strategy.gather(tf.constant(w)[tf.newaxis], axis=0)[0])
        for w in one.get_weights()
    ]
    one.set_weights(shared)
    many.set_weights(shared)
    expected = one.evaluate(x, y, batch_size=16, verbose=0)
    found = many.evaluate(x, y, batch_size=16, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    predicted = many.predict(x, batch_size=16, verbose=0)
    np.testing.assert_allclose(predicted, one.predict(x, batch_size=16, verbose=0), rtol=1e-5)
    np.testing.assert_allclose(many.evaluate(dataset, verbose=0), expected, rtol=1e-5)


def check_initial_values_are_the_first_workers_whatever_the_seeds():
    keras.utils.set_random_seed(rank)
    model = compiled()
    strategies.verify_equal(strategy, model.variables)
    initial = model.get_weights()[0]
    if workers > 1 and rank > 0:
        keras.utils.set_random_seed(rank)
        assert not np.array_equal(initial, keras.layers.Dense(8).kernel_initializer([5, 8]))


def check_training_on_uneven_data_has_the_same_logs_everywhere_and_no_nan():
    keras.utils.set_random_seed(rank)
    model = compiled(lambda: keras.optimizers.Adam(0.02))
    history = model.fit(
        x, y, batch_size=16, epochs=5, shuffle=False, validation_data=(x, y), verbose=0
    ).history
    assert all(np.isfinite(values).all() for values in history.values()), history
    assert history["val_accuracy"][-1] > 0.7, history
    assert_same_everywhere(strategy, history)
    strategies.verify_equal(strategy, model.variables)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert_same_everywhere(strategy, model.evaluate(x, y, batch_size=16, verbose=0))
    assert model.predict(x, batch_size=16, verbose=0).shape == (97, 1)


def check_arrays_are_shuffled_anew_in_each_epoch_and_each_example_comes_once():
    """One worker has Keras's own datasets, which repeat their order where a seed is set."""
    numbers = np.arange(40, dtype="float32").reshape(40, 1)
    seen: list = []

    class Recorder(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, inputs):
            tf.numpy_function(lambda rows: seen.append(rows[:, 0].tolist()), [inputs], [])
            return self.layer(inputs)

    keras.utils.set_random_seed(7)
    with strategy.scope():
        recorder = Recorder()
        recorder.build([None, 1])
        recorder.compile("sgd", "mse", jit_compile=False)
    epochs = []
    for _ in range(2):
        seen.clear()
        recorder.fit(numbers, numbers, batch_size=8, epochs=3, shuffle=True, verbose=0)
        rows = [row for batch in seen for row in batch]
        everyone = strategy.gather(tf.constant([len(rows)]), axis=0).numpy()
        assert everyone.sum() == 3 * 40, everyone
        gathered = strategy.gather(tf.constant(rows), axis=0).numpy().tolist()
        assert sorted(gathered) == sorted(numbers[:, 0].tolist() * 3)
        each = len(rows) // 3
        epochs += [tuple(rows[start : start + each]) for start in range(0, 3 * each, each)]
        assert workers == 1 or len(set(epochs[-3:])) == 3, "an epoch is in the order of another"


def check_several_steps_an_execution():
    """A loop in the graph."""
    model = compiled(steps_per_execution=3)
    history = model.fit(x, y, batch_size=16, verbose=0, shuffle=False).history
    assert_same_everywhere(strategy, history)
    assert len(model.predict(x, batch_size=16, verbose=0)) == 97
    strategies.verify_equal(strategy, model.variables)


def check_eager_training():
    model = compiled(metrics=None, run_eagerly=True)
    model.fit(x[:40], y[:40], batch_size=16, verbose=0, shuffle=False)
    strategies.verify_equal(strategy, model.variables)


def check_a_dataset_that_was_distributed_before():
    model = compiled()
    distributed = strategy.experimental_distribute_dataset(dataset)
    steps = 7 if keras.__name__ == "tf_keras" else None
    history = model.fit(distributed, steps_per_epoch=steps, verbose=0).history
    assert_same_everywhere(strategy, history)


def check_a_generator_whose_length_nobody_knows():
    def batches():
        for start in range(0, 97, 16):
            yield x[start : start + 16], y[start : start + 16]

    model = compiled()
    model.fit(batches(), verbose=0)
    strategies.verify_equal(strategy, model.variables)


def check_a_generator_in_another_order_on_each_worker_is_refused():
    labels = (y > 0).astype("int64")

    def batches():
        for start in range(0, 96, 16):
            rows = (np.arange(start, start + 16) + rank) % 97
            yield x[rows], labels[rows]

    if workers > 1:
        with raises(Exception, "examples of worker 1 that differ from those of worker 0"):
            compiled().fit(batches(), verbose=0)


def check_each_batch_of_a_dataset_with_threads_comes_once():
    """What threads have prepared in advance is not lost with the iterator that Keras leaves."""
    if keras.__name__ == "tf_keras":
        return

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 24

        def __getitem__(self, number):
            rows = slice(4 * number, 4 * number + 4)
            return x[rows], y[rows]

    with strategy.scope():
        model = keras.Sequential([keras.Input([5]), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(1.0), lambda _, y_pred: y_pred[:, 0])
    steps = 3 * x[:96].reshape(24, 4, 5).mean(axis=1).sum(axis=0)
    for steps_per_epoch in (None, 24):
        before = model.get_weights()[0][:, 0]
        rows = Rows(workers=2, max_queue_size=4)
        model.fit(rows, epochs=3, steps_per_epoch=steps_per_epoch, shuffle=False, verbose=0)
        moved = before - model.get_weights()[0][:, 0]
        np.testing.assert_allclose(moved, steps, rtol=1e-4, atol=1e-4)


def check_a_generator_gives_all_workers_the_same_batches():
    """However far ahead each one could read: what an iterator that is left has read, is lost."""
    if keras.__name__ == "tf_keras":
        return
    features = random.normal(size=[200, 16, 5]).astype("float32")

    def batches():
        for batch in features:
            time.sleep(0.002 + 0.03 * rank)
            yield batch, np.zeros([16, 1], "float32")

    with strategy.scope():  # which is built by what `fit` reads of the generator
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([layer])
        model.compile(keras.optimizers.SGD(1.0), lambda _, y_pred: y_pred[:, 0])
    generator, kernel = batches(), np.zeros([5])
    for first in (0, 7, 14):  # Keras peeks, and one batch is read ahead
        model.fit(generator, steps_per_epoch=3, epochs=2, verbose=0)
        kernel -= features[first : first + 6].mean(axis=1).sum(axis=0)
        np.testing.assert_allclose(model.get_weights()[0][:, 0], kernel, rtol=1e-3, atol=1e-3)


def check_datasets_of_unknown_length_take_nothing_for_good():
    if workers == 1:
        return
    model, unknown = compiled(), dataset.filter(lambda *_: True)

    def streams_of_a_round():
        model.fit(unknown, validation_data=unknown, verbose=0)
        model.evaluate(unknown, verbose=0)
        model.predict(unknown, verbose=0)
        return len(strategy.extended.collectives._child_streams)

    assert streams_of_a_round() == streams_of_a_round()


class MeansOfRows(keras.Model):
    """Keeps its loss, as Keras's examples do, and resets it where it is asked to."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1, kernel_initializer="ones")
        self.seen = keras.metrics.Mean(name="seen")
        self.latest = keras.metrics.Mean(name="latest")

    def call(self, features):
        self.add_loss(tf.reduce_mean(features) / strategy.num_replicas_in_sync)
        return self.layer(features)

    def train_step(self, data):
        features, _ = data
        self(features, training=True)
        mean = tf.reduce_mean(features)
        self.seen.update_state(mean)
        self.latest.reset_state()
        self.latest.update_state(mean)
        return {"seen": self.seen.result(), "latest": self.latest.result()}


def check_a_worker_without_examples_leaves_no_trace_in_metrics():
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        model = MeansOfRows()
        model.compile("sgd")
    rows = np.full([n + 1, 5], 3.0, "float32")  # the second batch has rows for one replica
    history = model.fit(rows, rows, batch_size=n, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["seen"], [3.0, 3.0])
    np.testing.assert_allclose(model.latest.result(), 3.0)


def check_metrics_are_updated_in_a_function_of_its_own():
    """It is traced once, in the graph of a step or of an evaluation, and called in both."""

    class Noting(MeansOfRows):
        @tf.function
        def note(self, features):
            self.seen.update_state(tf.reduce_mean(features))

        def train_step(self, data):
            self.note(data[0])
            return {"seen": self.seen.result()}

        test_step = train_step

    with strategy.scope():
        model = Noting()
        model.compile("sgd")
    rows = np.full([4 * strategy.num_replicas_in_sync, 5], 3.0, "float32")
    model.fit(rows, rows, batch_size=8, validation_data=(rows, rows), verbose=0)
    np.testing.assert_allclose(model.seen.result(), 3.0)


def check_saved_weights_are_loaded():
    model = compiled()
    model.fit(x, y, batch_size=16, verbose=0)
    weights = model.get_weights()
    with tempfile.TemporaryDirectory() as directory:
        # tf_keras cannot load its own HDF5 files into metrics under stock tf.distribute either.
        path = f"{directory}/{rank}" + (".weights.h5" if keras.__name__ == "keras" else "")
        model.save_weights(path)
        model.set_weights([np.zeros_like(weight) for weight in weights])
        model.load_weights(path)
    assert_all_equal(model.get_weights(), weights)
    strategies.verify_equal(strategy, model.variables)


def check_xla_is_refused_and_nothing_hangs():
    """It cannot compile what reduces over workers."""
    if workers == 1:
        return
    with strategy.scope():
        model = plain_model()
        model.compile("sgd", "binary_crossentropy", jit_compile=True)
    with raises(ValueError, "communicates between workers. Received: jit_compile=True"):
        model.fit(x, y, batch_size=16, verbose=0)


if __name__ == "__main__":
    run_checks(globals())
