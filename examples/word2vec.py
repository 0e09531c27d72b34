"""Learns vectors of English words, on one worker or on many: skip-gram with negative sampling.

    $ tf-config run --workers 2 examples/word2vec.py
    [worker 0] loss: 0.4571 in the first epoch, 0.3348 in the last
    ...
    [worker 0] near class: ...

With the manual of Python 3.11, near "class" are: mro, indirect, derived, base, weak, owner.
`tf-config run --workers 2 --ps 1 examples/word2vec.py --mode geo` has a parameter server.

The text is Python's own manual, which every Python carries (`pydoc_data.topics`). A word is to be
told from its neighbours apart from words drawn at random (Mikolov et al., "Distributed
Representations of Words and Phrases and their Compositionality", 2013). It ends with the nearest
words of some.
"""

from __future__ import annotations

import collections
import pydoc_data.topics
import re

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import strategies

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "mode",
    None,
    ["sync", "async", "half_async", "geo"],
    "How the workers and the parameter servers work together; only where there are servers.",
)
flags.DEFINE_integer("epochs", 5, "How often the pairs of words are gone through.", 1)
flags.DEFINE_integer("batch_size", 512, "Pairs per step, of all workers together.", 1)
flags.DEFINE_float("learning_rate", 5e-3, "Adam's.", 0)
flags.DEFINE_integer("width", 64, "Numbers in a word's vector.", 1)
flags.DEFINE_integer("window", 5, "The furthest neighbour of a word.", 1)
flags.DEFINE_integer("negatives", 5, "Random words to each pair.", 1)
flags.DEFINE_integer("least", 5, "How often a word has to occur to be learned.", 1)
flags.DEFINE_float("subsample", 1e-3, "The share of the text above which a word is thinned out.", 0)
flags.DEFINE_list("words", ["integer", "class", "exception", "string"], "Words to look at.")
flags.DEFINE_integer("seed", 1, "Of initial values and of all that is drawn at random.", 0)


def text() -> list[str]:
    """Returns the words of the manual in their order, in lower case."""
    topics = pydoc_data.topics.topics
    return re.findall("[a-z]+", " ".join(topics[name] for name in sorted(topics)).lower())


def vocabulary(words: list[str], least: int) -> tuple[list[str], np.ndarray]:
    """Returns the words that occur often enough, the most frequent first, and their counts."""
    found = collections.Counter(words).most_common()
    kept = [(word, count) for word, count in found if count >= least]
    return [word for word, _ in kept], np.array([count for _, count in kept])


def subsampled(ids: np.ndarray, counts: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns the text without some of its frequent words.

    A word that has the share f of the text stays with the probability sqrt(t / f), at most 1,
    where t is the flag `subsample`.
    """
    stays = np.sqrt(FLAGS.subsample * counts.sum() / counts)
    return ids[random.random(len(ids)) < stays[ids]]


def pairs(ids: np.ndarray, window: int, random: np.random.Generator) -> np.ndarray:
    """Returns words and neighbours, [pairs, 2].

    Each word looks 1 to `window` words to both sides, so that nearer neighbours come more often.
    """
    reach = random.integers(1, window + 1, len(ids))
    found = []
    for distance in range(1, window + 1):
        left, right = ids[:-distance], ids[distance:]
        found.append(np.stack([left, right], axis=1)[reach[:-distance] >= distance])
        found.append(np.stack([right, left], axis=1)[reach[distance:] >= distance])
    return np.concatenate(found)


def dataset(found: np.ndarray, counts: np.ndarray) -> tf.data.Dataset:
    """Returns batches of ((word [1], its neighbour and random words [1 + negatives]), labels)."""
    share = np.cumsum(counts**0.75)
    share = tf.constant(share / share[-1], tf.float32)

    def with_negatives(batch: tf.Tensor) -> tuple:
        drawn = tf.random.uniform([tf.shape(batch)[0] * FLAGS.negatives])
        negatives = tf.reshape(tf.searchsorted(share, drawn), [-1, FLAGS.negatives])
        # A number that was rounded up to 1 is beyond the last word.
        negatives = tf.minimum(negatives, len(counts) - 1)
        candidates = tf.concat([batch[:, 1:], negatives], axis=1)
        labels = tf.one_hot(tf.zeros_like(batch[:, 0]), 1 + FLAGS.negatives)
        return (batch[:, :1], candidates), labels

    batches = tf.data.Dataset.from_tensor_slices(found.astype(np.int32))
    batches = batches.shuffle(len(found), seed=FLAGS.seed).batch(FLAGS.batch_size)
    return batches.map(with_negatives).prefetch(tf.data.AUTOTUNE)


def make_model(words: int) -> tuple[keras.Model, keras.layers.Embedding]:
    """Returns the model, which gives the odds that words are neighbours, and its word vectors."""
    vectors = keras.layers.Embedding(words, FLAGS.width, name="words")
    word = keras.Input([1], dtype="int32")
    candidates = keras.Input([1 + FLAGS.negatives], dtype="int32")
    context = keras.layers.Embedding(words, FLAGS.width, "zeros", name="neighbours")(candidates)
    scores = keras.layers.Dot(axes=2)([vectors(word), context])
    return keras.Model([word, candidates], keras.layers.Flatten()(scores)), vectors


def nearest(vectors: np.ndarray, word: int, count: int = 6) -> list[int]:
    """Returns the words of the largest cosine with a word."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    order = np.argsort(-unit @ unit[word])
    return [int(other) for other in order if other != word][:count]


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"No arguments but flags are known. Received: {argv[1:]}.")
    keras.utils.set_random_seed(FLAGS.seed)
    strategy = strategies.from_tf_config(**({"mode": FLAGS.mode} if FLAGS.mode else {}))

    manual = text()
    words, counts = vocabulary(manual, FLAGS.least)
    number = {word: index for index, word in enumerate(words)}
    if unknown := [word for word in FLAGS.words if word not in number]:
        raise app.UsageError(
            f"--words are among those that occur {FLAGS.least} times in the manual. Received: "
            f"{unknown}."
        )
    ids = np.array([number[word] for word in manual if word in number])
    random = np.random.default_rng(FLAGS.seed)
    found = pairs(subsampled(ids, counts, random), FLAGS.window, random)
    strategy.print(f"{len(ids)} words of text, {len(words)} different ones, {len(found)} pairs")

    with strategy.scope():
        model, vectors = make_model(len(words))
        model.compile(
            keras.optimizers.Adam(FLAGS.learning_rate),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
    history = model.fit(dataset(found, counts), epochs=FLAGS.epochs, shuffle=False).history
    strategy.print(
        f"loss: {history['loss'][0]:.4f} in the first epoch, {history['loss'][-1]:.4f} in the last"
    )
    table = vectors.get_weights()[0]
    for word in FLAGS.words:
        near = [words[other] for other in nearest(table, number[word])]
        strategy.print(f"near {word}: {', '.join(near)}")


if __name__ == "__main__":
    app.run(main)
