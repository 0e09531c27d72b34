r"""Predicts clicks with a deep network over hashed features (CTR-DNN), on one worker or on many.

    $ python examples/criteo_data.py --directory logs/criteo --rows 20000 --test_rows 5000
    $ tf-config run --workers 2 examples/ctr_dnn.py --batch_size 128 \
        --train 'logs/criteo/train-*' --test 'logs/criteo/test-*'
    [worker 0] test loss: 0.4659, test AUC: 0.7052
    $ tf-config run --workers 2 --ps 1 examples/ctr_dnn.py --batch_size 128 --mode geo \
        --train 'logs/criteo/train-*' --test 'logs/criteo/test-*'
    [worker 0] test loss: 0.4739, test AUC: 0.6845

The files have the format of Criteo's click logs: a label, 13 integers, 26 categorical values, with
tabs between them. The values of all 26 features share one table of embeddings, in which each has
its row by a hash. Three wide layers see all of them beside the logarithms of the integers.

With `--strings` the values stay text until Keras's own `Hashing` layer makes each an id, one of so
many that no two are likely to share one. A `strategies.DistributedEmbedding` gives a row to each id
that comes; every worker, or every server, has a part of the rows.
"""

from __future__ import annotations

import keras
import tensorflow as tf
from absl import app, flags

import strategies

FLAGS = flags.FLAGS
flags.DEFINE_string("train", None, "Pattern of the files to train on.", required=True)
flags.DEFINE_string("test", None, "Pattern of the files to test on.", required=True)
flags.DEFINE_enum(
    "mode",
    None,
    ["sync", "async", "half_async", "geo"],
    "How the workers and the parameter servers work together; only where there are servers.",
)
flags.DEFINE_integer("epochs", 1, "How often the rows are gone through.", 1)
flags.DEFINE_integer("batch_size", 512, "Examples per step, of all workers together.", 1)
flags.DEFINE_float("learning_rate", 1e-3, "Adam's.", 0)
flags.DEFINE_integer("table_rows", 100_001, "Rows of the table of embeddings.", 1)
flags.DEFINE_bool("strings", False, "Gives every value a row of its own, in a table that grows.")
flags.DEFINE_integer("width", 10, "Numbers in an embedding.", 1)
flags.DEFINE_list("layers", ["400", "400", "400"], "Units of the layers above the embeddings.")
flags.DEFINE_integer("seed", 1, "Of initial values and of the order of rows.")

INTEGERS, CATEGORIES = 13, 26
PARSED_TOGETHER = 512  # lines; one by one takes several times as long
IDS = 2**62  # that any two of a million values share one has a chance of one in ten million


def rows(file: tf.Tensor) -> tf.data.Dataset:
    """Returns the rows of a file: ((logarithms [13], ids [26]), label [1])."""
    return tf.data.TextLineDataset(file).batch(PARSED_TOGETHER).map(parse).unbatch()


def parse(lines: tf.Tensor) -> tuple:
    """Makes lines into numbers; what is missing is 0 among the integers, an id of its own else."""
    fields = tf.io.decode_csv(
        lines, [[0.0]] * (1 + INTEGERS) + [[""]] * CATEGORIES, field_delim="\t"
    )
    labels, *columns = fields
    integers = tf.stack(columns[:INTEGERS], axis=1)
    logarithms = tf.sign(integers) * tf.math.log1p(tf.abs(integers))
    # The feature's number is hashed too, for features may have values in common.
    values = [f"{number} " + column for number, column in enumerate(columns[INTEGERS:])]
    ids = hashed(tf.stack(values, axis=1))
    return (logarithms, ids), labels[:, tf.newaxis]


def hashed(values: tf.Tensor) -> tf.Tensor:
    """Returns the id of each text."""
    if FLAGS.strings:
        return keras.layers.Hashing(IDS)(values)
    return tf.strings.to_hash_bucket_fast(values, FLAGS.table_rows)


def make_model() -> keras.Model:
    logarithms = keras.Input([INTEGERS])
    ids = keras.Input([CATEGORIES], dtype="int64")
    x = keras.layers.Concatenate()([logarithms, keras.layers.Flatten()(embedding()(ids))])
    for units in FLAGS.layers:
        x = keras.layers.Dense(int(units), "relu")(x)
    return keras.Model([logarithms, ids], keras.layers.Dense(1, "sigmoid")(x))


def embedding() -> keras.layers.Layer:
    if FLAGS.strings:
        return strategies.DistributedEmbedding(FLAGS.width)
    return keras.layers.Embedding(FLAGS.table_rows, FLAGS.width)


def read(files: str, strategy: tf.distribute.Strategy, shuffle: int = 0) -> tf.data.Dataset:
    """Returns batches of the rows of files, of those that are this worker's."""
    return strategies.read_files(
        files, strategy, FLAGS.batch_size, reader=rows, shuffle=shuffle, seed=FLAGS.seed
    )


def train(strategy: tf.distribute.Strategy) -> keras.Model:
    with strategy.scope():
        model = make_model()
        model.compile(
            keras.optimizers.Adam(FLAGS.learning_rate),
            "binary_crossentropy",
            metrics=[keras.metrics.AUC(num_thresholds=1000, name="auc")],
        )
    dataset = read(FLAGS.train, strategy, shuffle=10_000)
    model.fit(dataset, epochs=FLAGS.epochs, shuffle=False)
    return model


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"No arguments but flags are known. Received: {argv[1:]}.")
    keras.utils.set_random_seed(FLAGS.seed)
    strategy = strategies.from_tf_config(**({"mode": FLAGS.mode} if FLAGS.mode else {}))
    model = train(strategy)
    loss, auc = model.evaluate(read(FLAGS.test, strategy), verbose=0)
    strategy.print(f"test loss: {loss:.4f}, test AUC: {auc:.4f}")


if __name__ == "__main__":
    app.run(main)
