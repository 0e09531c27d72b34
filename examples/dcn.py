r"""Predicts clicks day by day with a Deep & Cross Network (DCN-v2) on 26 tables of embeddings.

    $ python examples/criteo_data.py --directory logs/criteo --rows 20000 --test_rows 5000
    $ tf-config run --workers 2 examples/dcn.py --train 'logs/criteo/train-*' \
        --test 'logs/criteo/test-*' --rows logs/rows
    [worker 0] day 0: 10868 rows evicted, 5942 kept, 1 MB saved
    [worker 0] day 1: 9872 rows evicted, 8030 kept, 1 MB saved
    ...
    [worker 0] test loss: 0.4597, test AUC: 0.7110
    [worker 0] loaded 4 saves: all rows are equal

The files have the format of Criteo's click logs; each file of `--train` is taken for a day. After
each day, rows that were trained on only once are evicted, and the rows that changed on that day are
saved: all rows on the first day, then a delta. A service that serves the model
loads the deltas as they come. At the end, a second layer loads the rows, which proves that the
files are complete.

Each of the 26 categorical features has a table of its own in one `strategies.DistributedEmbedding`,
which looks up tables of the same width together. The rows are distributed over the workers. The
network is that of Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for
Web-scale Learning to Rank Systems", 2021.
"""

from __future__ import annotations

import glob
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import strategies

FLAGS = flags.FLAGS
flags.DEFINE_string("train", None, "Pattern of the files to train on, one a day.", required=True)
flags.DEFINE_string("test", None, "Pattern of the files to test on.", required=True)
flags.DEFINE_string("rows", None, "Directory for the rows of the tables.", required=True)
flags.DEFINE_integer("batch_size", 128, "Examples in a step, of all workers together.", 1)
flags.DEFINE_float("learning_rate", 2e-3, "Learning rate of Adam.", 0)
flags.DEFINE_integer("crosses", 2, "Cross layers.", 1)
flags.DEFINE_list("layers", ["128", "64"], "Units of the deep layers.")

INTEGERS, CATEGORIES = 13, 26
WIDTHS = [4] * 13 + [8] * 13
PARSED_TOGETHER = 512  # lines; parsing them one by one takes several times as long


def read_lines(file: tf.Tensor) -> tf.data.Dataset:
    """Returns the examples of a file: a dictionary of features, and the label [1]."""
    return tf.data.TextLineDataset(file).batch(PARSED_TOGETHER).map(parse).unbatch()


def parse(lines: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Parses lines; a missing integer is 0, a missing value is a value like any other."""
    defaults = [[0.0]] * (1 + INTEGERS) + [[""]] * CATEGORIES
    labels, *columns = tf.io.decode_csv(lines, defaults, field_delim="\t")
    integers = tf.stack(columns[:INTEGERS], axis=1)
    examples = {"integers": tf.sign(integers) * tf.math.log1p(tf.abs(integers))}
    for number, column in enumerate(columns[INTEGERS:]):
        # Any int64 is an id, so no vocabulary is needed, and collisions are unlikely.
        examples[f"value_{number}"] = tf.strings.to_hash_bucket_fast(column, 2**62)
    return examples, labels[:, tf.newaxis]


@keras.saving.register_keras_serializable(package="dcn")
class Cross(keras.layers.Layer):
    """Returns x0 * (W x + b) + x: the products of the features of x0 and of x."""

    def build(self, shapes):
        self.dense = keras.layers.Dense(shapes[1][-1])
        self.dense.build(shapes[1])

    def call(self, inputs):
        x0, x = inputs
        return x0 * self.dense(x) + x


def make_embedding() -> strategies.DistributedEmbedding:
    """Returns a layer with a table for each categorical feature."""
    features = {}
    for number, width in enumerate(WIDTHS):
        name = f"value_{number}"
        table = strategies.TableConfig(name, width, eviction=strategies.Eviction(count=2))
        features[name] = strategies.FeatureConfig(table)
    return strategies.DistributedEmbedding(features=features)


def make_model(embedding: strategies.DistributedEmbedding) -> keras.Model:
    integers = keras.Input([INTEGERS], name="integers")
    ids = {
        f"value_{number}": keras.Input([], dtype="int64", name=f"value_{number}")
        for number in range(CATEGORIES)
    }
    rows = embedding(ids)
    x0 = x = keras.layers.Concatenate()([integers, *(rows[name] for name in ids)])
    for _ in range(FLAGS.crosses):
        x = Cross()([x0, x])
    for units in FLAGS.layers:
        x = keras.layers.Dense(int(units), "relu")(x)
    return keras.Model({"integers": integers, **ids}, keras.layers.Dense(1, "sigmoid")(x))


def read(files: str, strategy: tf.distribute.Strategy, shuffle: int = 0) -> tf.data.Dataset:
    """Returns batches of the examples of files, of which each worker reads a share."""
    return strategies.read_files(
        files,
        strategy,
        FLAGS.batch_size,
        reader=read_lines,
        shard="rows",
        shuffle=shuffle,
        seed=1,
    )


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are accepted. Received: {argv[1:]}.")
    days = sorted(glob.glob(FLAGS.train))
    if not days:
        raise app.UsageError(f"--train must match files. Received: {FLAGS.train!r}.")
    keras.utils.set_random_seed(1)
    strategy = strategies.from_tf_config()
    with strategy.scope():
        embedding = make_embedding()
        model = make_model(embedding)
        model.compile(
            keras.optimizers.Adam(FLAGS.learning_rate),
            "binary_crossentropy",
            metrics=[keras.metrics.AUC(name="auc")],
        )

    for day, file in enumerate(days):
        model.fit(read(file, strategy, shuffle=10_000), shuffle=False, verbose=0)
        evicted = sum(embedding.evict().values())
        # All workers save together, and each writes the rows that it has.
        folder = embedding.save_rows(FLAGS.rows, delta=day > 0)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        rows = sum(int(each["rows"]) for each in embedding.statistics().values())
        strategy.print(f"day {day}: {evicted} rows evicted, {rows} kept, {size / 1e6:.0f} MB saved")

    loss, auc = model.evaluate(read(FLAGS.test, strategy), verbose=0)
    strategy.print(f"test loss: {loss:.4f}, test AUC: {auc:.4f}")

    with strategy.scope():
        loaded = make_embedding()
        loaded.build()
    loaded.load_rows(FLAGS.rows)
    for table in (f"value_{number}" for number in range(CATEGORIES)):
        for expected, found in zip(embedding.rows(table), loaded.rows(table), strict=True):
            np.testing.assert_array_equal(found, expected)
    strategy.print(f"loaded {len(days)} saves: all rows are equal")


if __name__ == "__main__":
    app.run(main)
