"""Programs of the kind that people report: input that is not of one size, order or seed."""

import keras
import keras_tuner
import numpy as np
import tensorflow as tf
from keras import layers, ops

import strategies
from keras_io.program import Example, Outcome, generator


def bucketed_lengths(runtime):
    """Sentences of every length, batched with others of like length: their number is unknown."""
    random = generator()
    sentences = [random.integers(1, 40, size=[n]) for n in random.integers(2, 13, size=90)]
    labels = np.array([sentence[0] % 2 for sentence in sentences], "float32")

    def read():
        yield from zip(sentences, labels, strict=True)

    of_one_example = tf.TensorSpec([None], "int64"), tf.TensorSpec([], "float32")
    dataset = tf.data.Dataset.from_generator(read, output_signature=of_one_example)
    dataset = dataset.bucket_by_sequence_length(
        lambda sentence, _: tf.size(sentence), bucket_boundaries=[5, 9], bucket_batch_sizes=[16] * 3
    )
    # Keras 3.15 by itself counts a step too many in each epoch of unknown length.
    steps = sum(1 for _ in dataset)
    if runtime.is_alone:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    with runtime.scope():
        model = keras.Sequential(
            [
                runtime.embedding(40, 8, "words", mask_zero=True),
                layers.LSTM(8),
                layers.Dense(1),
            ]
        )
        schedule = keras.optimizers.schedules.ExponentialDecay(0.05, steps, 0.5)
        # The replicas' parts of a batch are not of one size, so only a sum is the sum of the parts.
        loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")
        model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    logs = dict(model.fit(dataset, epochs=3, verbose=0).history)
    logs["steps"] = [float(model.optimizer.iterations)]
    logs["evaluated"] = list(model.evaluate(dataset, verbose=0))
    return Outcome([model], logs, model.predict(dataset, verbose=0))


def python_generator(runtime):
    """A generator that never ends, and one that is read to its end."""

    def batches(count):
        random = generator()
        for _ in range(count):
            x = random.normal(size=[16, 6]).astype("float32")
            yield x, x[:, :2].sum(axis=1, keepdims=True)

    with runtime.scope():
        model = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    logs = dict(model.fit(batches(1000), steps_per_epoch=4, epochs=3, verbose=0).history)
    logs["evaluated"] = [model.evaluate(batches(5), verbose=0)]
    return Outcome([model], logs, model.predict(((x,) for x, _ in batches(3)), verbose=0))


def seeds_of_ranks(runtime):
    """Each worker has a seed of its own, as Horovod's guides and DDP's want it."""
    keras.utils.set_random_seed(42 + runtime.rank)
    random = generator()
    x = random.normal(size=[96, 6]).astype("float32")
    y = x[:, :3].argmax(axis=1)
    with runtime.scope():
        model = keras.Sequential([keras.Input([6]), layers.Dense(12, "relu"), layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    # All examples in one batch: their order is random, but each has to be there once.
    logs = model.fit(x, y, batch_size=96, epochs=6, verbose=0).history
    return Outcome([model], logs, model.predict(x, batch_size=32, verbose=0))


def tuner(runtime):
    """KerasTuner looks for a width and a learning rate, in one directory for all workers."""
    random = generator()
    x = random.normal(size=[64, 4]).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def build(choices):
        with runtime.scope():
            model = keras.Sequential(
                [keras.Input([4]), layers.Dense(choices.Int("width", 4, 8, 4)), layers.Dense(1)]
            )
            model.compile(keras.optimizers.SGD(choices.Choice("rate", [0.01, 0.1])), "mse")
            return model

    search = keras_tuner.GridSearch(
        build, objective="loss", directory=runtime.directory(), project_name="widths"
    )
    search.search(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    trials = search.oracle.get_best_trials(4)
    logs = {"loss": [trial.score for trial in reversed(trials)]}
    return Outcome([], logs)


class RaggedModel(keras.Model):
    """A subclassed model of ragged input, which is built before `fit`."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.head = layers.Dense(1)

    def build(self, input_shape):
        del input_shape
        self.embedding.build([None, None])
        self.head.build([None, self.embedding.output_dim])

    def call(self, sentences):
        vectors = self.embedding(sentences.to_tensor())
        weights = tf.expand_dims(tf.sequence_mask(sentences.row_lengths(), dtype="float32"), -1)
        return self.head(tf.reduce_sum(vectors * weights, axis=1))


def ragged(runtime):
    """Ragged tensors go into a subclassed model that has its weights already."""
    random = generator()
    lengths = random.integers(0, 7, size=96)
    sentences = tf.RaggedTensor.from_row_lengths(random.integers(1, 40, lengths.sum()), lengths)
    labels = np.array([len(set(row)) for row in sentences.to_list()], "float32")[:, None]
    dataset = tf.data.Dataset.from_tensor_slices((sentences, labels)).ragged_batch(16)
    with runtime.scope():
        model = RaggedModel(runtime.embedding(40, 8, "words"))
        model.build([None, None])
        model.compile(keras.optimizers.Adam(0.05), "mse")
    logs = model.fit(dataset, epochs=3, verbose=0).history
    return Outcome([model], logs, model.predict(dataset.map(lambda x, _: x), verbose=0))


class Penalized(keras.Model):
    """A model whose own training step adds the sum of all squared weights to the loss."""

    def train_step(self, data):
        x, y = data
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with tf.GradientTape() as tape:
            error = tf.reduce_sum(tf.square(self(x, training=True) - y))
            penalty = sum(tf.nn.l2_loss(variable.value) for variable in self.trainable_variables)
            # Gradients are summed, and each replica has the same weights.
            loss = error + 0.5 * penalty / replicas
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"weights": tf.linalg.global_norm([v.value for v in self.trainable_variables])}


def regularized_by_hand(runtime):
    """`tf.nn.l2_loss` and `tf.linalg.global_norm` of all weights, an embedding's among them."""
    random = generator()
    ids = random.integers(0, 30, size=[64, 3])
    y = (ids.sum(axis=1, keepdims=True) / 45).astype("float32")
    with runtime.scope():
        inputs = keras.Input([3], dtype="int64")
        vectors = layers.Embedding(30, 4)(inputs)
        model = Penalized(inputs, layers.Dense(1)(layers.Flatten()(vectors)))
        model.compile(keras.optimizers.SGD(0.01))
    logs = model.fit(ids, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history
    return Outcome([model], logs, model.predict(ids, batch_size=16, verbose=0))


class Tied(keras.Model):
    """The next word of a sentence, out of the same vectors that words go in by."""

    def __init__(self, embedding, words):
        super().__init__()
        self.embedding = embedding
        self.recurrent = layers.GRU(embedding.output_dim)
        self.words = words

    def call(self, sentences):
        state = self.recurrent(self.embedding(sentences))
        candidates = self.embedding(ops.arange(self.words, dtype="int64"))
        return ops.matmul(state, ops.transpose(candidates))


def tied_output(runtime):
    """The rows of an embedding are the output layer's weights, too."""
    random = generator()
    sentences = random.integers(0, 20, size=[64, 5])
    with runtime.scope():
        model = Tied(runtime.embedding(20, 8, "words"), 20)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Keras 3's Adam squares the gradients of a row's uses one by one, so a step depends on how
        # many uses there are, and each replica uses every candidate.
        model.compile(keras.optimizers.SGD(0.5), loss)
    logs = model.fit(
        sentences, sentences[:, 0], batch_size=16, epochs=3, shuffle=False, verbose=0
    ).history
    return Outcome([model], logs, model.predict(sentences, batch_size=16, verbose=0))


def admission(runtime):
    """Only ids that have come twice have rows of their own."""
    random = generator()
    ids = random.zipf(1.3, size=[128, 4]) % 1000
    y = (ids % 2).sum(axis=1, keepdims=True).astype("float32")
    with runtime.scope():
        embedding = strategies.DistributedEmbedding(
            8, combiner="sum", admission=strategies.Admission(2), name="items"
        )
        model = keras.Sequential([keras.Input([4], dtype="int64"), embedding, layers.Dense(1)])
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
    logs = model.fit(ids, y, batch_size=32, epochs=3, shuffle=False, verbose=0).history
    return Outcome([model], logs, model.predict(ids, batch_size=32, verbose=0))


def leftovers_of_one(runtime):
    """The last batch is one example, which leaves a replica without any."""
    random = generator()
    x = random.normal(size=[65, 6]).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    with runtime.scope():
        inputs = keras.Input([6])
        hidden = layers.LayerNormalization()(layers.Dense(12, "gelu")(inputs))
        model = keras.Model(inputs, layers.Dense(1)(hidden))
        loss = keras.losses.MeanSquaredError(reduction="sum")
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["mae"])
    held_out = x[:33], y[:33]
    logs = dict(
        model.fit(
            x,
            y,
            batch_size=16,
            epochs=3,
            shuffle=False,
            verbose=0,
            validation_data=held_out,
        ).history
    )
    logs["evaluated"] = list(model.evaluate(x, y, batch_size=32, verbose=0))
    return Outcome([model], logs, model.predict(x, batch_size=32, verbose=0))


def in_any_order(runtime):
    """A pipeline that lets its parts come in any order, so that no worker's has the others'."""
    random = generator()
    x = random.normal(size=[120, 6]).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def of_one_part(part):
        rows = tf.data.Dataset.from_tensor_slices((x, y))
        return rows.shard(4, part)

    dataset = (
        tf.data.Dataset.range(4)
        .interleave(of_one_part, 4, num_parallel_calls=4, deterministic=False)
        .map(lambda x, y: (x * 1, y), num_parallel_calls=4, deterministic=False)
        .batch(120)  # all examples, in whatever order
    )
    with runtime.scope():
        model = keras.Sequential([layers.Dense(12, "tanh"), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    logs = model.fit(dataset, epochs=6, verbose=0).history
    return Outcome([model], logs, model.predict(x, batch_size=24, verbose=0))


EXAMPLES = [
    Example(bucketed_lengths, has_ids=True),
    Example(python_generator),
    Example(seeds_of_ranks),
    Example(tuner),
    Example(ragged, has_ids=True),
    Example(regularized_by_hand, falls=None),
    Example(tied_output, has_ids=True),
    Example(admission),
    Example(leftovers_of_one),
    Example(in_any_order),
]
