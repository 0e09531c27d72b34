"""Sequences: masks, text as strings, attention, recommendation."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_io.program import Example, Outcome, generator

WORDS = np.array("the film was good bad dull great poor fine and very plot actor".split())


def sentences(count):
    """Returns short texts, and whether their words are kind."""
    random = generator()
    chosen = random.integers(0, len(WORDS), size=[count, 6])
    lengths = random.integers(2, 7, size=count)
    texts = [" ".join(WORDS[row[:n]]) for row, n in zip(chosen, lengths, strict=True)]
    kind = np.isin(WORDS, ["good", "great", "fine"]).astype(int)
    unkind = np.isin(WORDS, ["bad", "dull", "poor"]).astype(int)
    score = [
        kind[row[:n]].sum() - unkind[row[:n]].sum() for row, n in zip(chosen, lengths, strict=True)
    ]
    return np.array(texts), (np.array(score) > 0).astype("float32")[:, None]


def padded_ids(count, length=8):
    """Returns rows of ids that end in zeros, and a label that hangs on their order."""
    random = generator(5)
    ids = random.integers(1, 40, size=[count, length])
    for row, used in zip(ids, random.integers(2, length + 1, size=count), strict=True):
        row[used:] = 0
    return ids, (ids[:, :1] > ids[:, 1:2]).astype("float32")


def bidirectional_lstm(runtime):
    """A masked, stacked, bidirectional LSTM over padded ids."""
    ids, labels = padded_ids(128)
    with runtime.scope():
        inputs = keras.Input([None], dtype="int32")
        x = runtime.embedding(40, 8, "words", mask_zero=True)(inputs)
        x = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(x)
        x = layers.Bidirectional(layers.LSTM(6))(x)
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(ids, labels, batch_size=32, epochs=4, shuffle=False, verbose=0).history
    return Outcome([model], history, model.predict(ids, batch_size=32, verbose=0))


def vectorized_text(runtime):
    """TextVectorization in the pipeline, a convolution over words, then a model of strings."""
    texts, labels = sentences(128)
    vectorize = layers.TextVectorization(max_tokens=30, output_sequence_length=6)
    vectorize.adapt(texts)
    dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(32)
    ids = dataset.map(lambda text, label: (vectorize(text), label)).cache().prefetch(2)
    with runtime.scope():
        inputs = keras.Input([None], dtype="int64")
        x = runtime.embedding(30, 8, "tokens")(inputs)
        x = layers.Conv1D(8, 3, padding="same", activation="relu")(x)
        x = layers.GlobalMaxPooling1D()(x)
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(ids, epochs=4, verbose=0).history
    with runtime.scope():
        strings = keras.Input([1], dtype="string")
        whole = keras.Model(strings, model(vectorize(strings)))
        whole.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    history["of_strings"] = list(whole.evaluate(dataset, verbose=0))
    return Outcome([model], history, whole.predict(dataset.map(lambda text, _: text), verbose=0))


def bag_of_words(runtime):
    """Sequential without an Input, which the first batch of ids builds."""
    ids, labels = padded_ids(128)
    with runtime.scope():
        model = keras.Sequential(
            [
                runtime.embedding(40, 8, "bag"),
                layers.GlobalAveragePooling1D(),
                layers.Dense(8, activation="relu"),
                layers.Dense(1),
            ]
        )
        model.compile(
            keras.optimizers.Adagrad(0.3),
            keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
        )
    history = model.fit(ids, labels, batch_size=32, epochs=10, shuffle=False, verbose=0).history
    return Outcome([model], history, model.predict(ids, batch_size=32, verbose=0))


class Recommender(keras.Model):
    """Users and films as vectors; call takes no `training`."""

    def __init__(self, users, films, runtime, **kwargs):
        super().__init__(**kwargs)
        self.users = runtime.embedding(users, 8, "users")
        self.user_bias = runtime.embedding(users, 1, "user_bias")
        self.films = runtime.embedding(films, 8, "films")
        self.film_bias = runtime.embedding(films, 1, "film_bias")

    def call(self, inputs):
        user, film = inputs[:, 0], inputs[:, 1]
        score = ops.sum(self.users(user) * self.films(film), axis=1, keepdims=True)
        return ops.sigmoid(score + self.user_bias(user) + self.film_bias(film))


def collaborative_filtering(runtime):
    """Ratings of films by users, as in MovieLens."""
    random = generator()
    pairs = np.stack([random.integers(0, 30, 256), random.integers(0, 20, 256)], axis=1)
    ratings = ((pairs.sum(1) % 2) * 0.8 + 0.1).astype("float32")[:, None]
    with runtime.scope():
        model = Recommender(30, 20, runtime)
        model.compile(keras.optimizers.Adam(0.05), keras.losses.BinaryCrossentropy())
    history = model.fit(
        pairs, ratings, batch_size=64, epochs=5, shuffle=False, verbose=0,
        validation_data=(pairs[:64], ratings[:64]),
    ).history  # fmt: skip
    return Outcome([model], history, model.predict(pairs[:70], batch_size=32, verbose=0))


class Block(layers.Layer):
    """One block of a transformer."""

    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.first_norm = layers.LayerNormalization(epsilon=1e-6)
        self.second_norm = layers.LayerNormalization(epsilon=1e-6)
        self.inner = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(width)])

    def call(self, inputs):
        x = self.first_norm(inputs + self.attention(inputs, inputs))
        return self.second_norm(x + self.inner(x))


def text_transformer(runtime):
    """Tokens and positions, one block of attention, a classifier."""
    ids, _ = padded_ids(128)
    labels = (np.count_nonzero(ids, axis=1) > 5).astype("int64")  # learned in a few steps
    with runtime.scope():
        inputs = keras.Input([8], dtype="int64")
        positions = layers.Embedding(8, 8)(ops.arange(8))
        x = runtime.embedding(40, 8, "pieces")(inputs) + positions
        x = Block(8, 2)(x)
        x = layers.GlobalAveragePooling1D()(x)
        model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
        model.compile(
            keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    history = model.fit(ids, labels, batch_size=32, epochs=4, shuffle=False, verbose=0).history
    return Outcome([model], history, model.predict(ids, batch_size=32, verbose=0))


def timeseries_transformer(runtime):
    """Series of numbers, attention over time, Dropout at 0 so that runs can be compared."""
    random = generator()
    labels = random.integers(0, 2, size=96)
    series = random.normal(size=[96, 20, 1], loc=2 * labels[:, None, None] - 1).astype("float32")
    with runtime.scope():
        inputs = keras.Input([20, 1])
        x = inputs
        for _ in range(2):
            attended = layers.MultiHeadAttention(2, 4, dropout=0.0)(x, x)
            x = layers.LayerNormalization(epsilon=1e-6)(attended) + x
            hidden = layers.Conv1D(4, 1, activation="relu")(x)
            x = layers.LayerNormalization(epsilon=1e-6)(layers.Conv1D(1, 1)(hidden)) + x
        x = layers.GlobalAveragePooling1D(data_format="channels_first")(x)
        x = layers.Dense(8, activation="relu")(x)
        model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
        model.compile(
            keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy",
            metrics=["sparse_categorical_accuracy"],
        )  # fmt: skip
    history = model.fit(
        series, labels, batch_size=32, epochs=4, shuffle=False, verbose=0,
        callbacks=[keras.callbacks.EarlyStopping("loss", patience=3)],
    ).history  # fmt: skip
    return Outcome([model], history, model.predict(series, batch_size=32, verbose=0))


def addition(runtime):
    """Sequence to sequence: an encoder, RepeatVector, a decoder, a class for each character."""
    random = generator()
    x = keras.utils.to_categorical(random.integers(0, 11, size=[96, 5]), 11)
    y = keras.utils.to_categorical(x.argmax(-1)[:, :3], 11)
    with runtime.scope():
        model = keras.Sequential(
            [
                keras.Input([5, 11]),
                layers.LSTM(16),
                layers.RepeatVector(3),
                layers.GRU(16, return_sequences=True),
                layers.TimeDistributed(layers.Dense(11, activation="softmax")),
            ]
        )
        optimizer = keras.optimizers.Adam(0.03)
        model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0).history
    return Outcome([model], history, model.predict(x, batch_size=32, verbose=0))


EXAMPLES = [
    Example(bidirectional_lstm, has_ids=True),
    Example(vectorized_text, has_ids=True),
    Example(bag_of_words, has_ids=True),
    Example(collaborative_filtering, has_ids=True),
    Example(text_transformer, has_ids=True),
    Example(timeseries_transformer),
    Example(addition),
]
