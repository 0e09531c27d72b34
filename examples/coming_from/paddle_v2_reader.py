"""A language model whose data come from a `reader()`, as in PaddlePaddle v2.

    $ tf-config run --workers 2 examples/coming_from/paddle_v2_reader.py
    [worker 0] pass 0, cost 5.2428
    [worker 0] pass 1, cost 4.9462
    [worker 0] pass 2, cost 4.7871

In v2, `reader()` is a function that yields examples, and `trainer.train` takes
`paddle.batch(paddle.reader.shuffle(reader, 1000), 64)`. Here the reader stays as it is, and `fit`
takes `tf.data.Dataset.from_generator(reader, ...).shuffle(1000).batch(64)`. Two things change: the
batch size is that of all trainers together, and each reader yields all examples, because the
strategy divides the batches. So remove `if number % TRAINER_COUNT == TRAINER_ID`.

The model predicts a word from the four words before it, like v2's example on imikolov. The text is
a part of Python's own manual (`pydoc_data.topics`).
"""

import collections
import pydoc_data.topics
import re

import keras
import tensorflow as tf

import strategies

N, WORDS, LINES = 5, 500, 2000
PASSES, BATCH_SIZE = 3, 64  # of all workers together


def read_lines():
    """Returns some lines of the manual as lists of words."""
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics)).lower()
    return [re.findall("[a-z]+", line) for line in text.splitlines()[:LINES]]


def build_dict(lines):
    """Returns the numbers of the most frequent words; 0 is for all others."""
    frequent = collections.Counter(word for line in lines for word in line).most_common(WORDS - 1)
    return {word: number for number, (word, _) in enumerate(frequent, start=1)}


def ngrams(lines, word_dict):
    """Returns a reader: a function that yields N successive words, as numbers."""

    def reader():
        for line in lines:
            ids = [word_dict.get(word, 0) for word in line]
            for end in range(N, len(ids) + 1):
                yield ids[end - N : end]

    return reader


def main():
    keras.utils.set_random_seed(1)
    strategy = strategies.from_tf_config(mode="sync")  # v2's default
    lines = read_lines()
    reader = ngrams(lines, build_dict(lines))
    dataset = tf.data.Dataset.from_generator(reader, output_signature=tf.TensorSpec([N], tf.int64))
    dataset = dataset.map(lambda ids: (ids[:-1], ids[-1])).shuffle(1000).batch(BATCH_SIZE)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([N - 1], dtype="int64"),
                keras.layers.Embedding(WORDS, 32),
                keras.layers.Flatten(),
                keras.layers.Dense(64, "sigmoid"),
                keras.layers.Dense(WORDS),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(3e-3), loss)

    # The event handler: a callback.
    report = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda number, logs: strategy.print(f"pass {number}, cost {logs['loss']:.4f}")
    )
    model.fit(dataset, epochs=PASSES, callbacks=[report], shuffle=False, verbose=0)


if __name__ == "__main__":
    main()
