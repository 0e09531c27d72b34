"""Rows of features: several inputs and outputs, preprocessing layers, own training steps."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_io.program import Example, Outcome, generator


def tickets(runtime):
    """Functional: three inputs, two outputs with losses and weights of their own."""
    random = generator()
    titles = random.integers(1, 60, size=[128, 6])
    bodies = random.integers(1, 60, size=[128, 10])
    tags = random.integers(0, 2, size=[128, 4]).astype("float32")
    urgent = (tags[:, :1] + titles[:, :1] % 2 > 1).astype("float32")
    department = bodies[:, 0] % 3
    with runtime.scope():
        title = keras.Input([None], name="title", dtype="int64")
        body = keras.Input([None], name="body", dtype="int64")
        tag = keras.Input([4], name="tags")
        words = layers.LSTM(8)(runtime.embedding(60, 8, "title_words")(title))
        text = layers.LSTM(8)(runtime.embedding(60, 8, "body_words")(body))
        features = layers.concatenate([words, text, tag])
        model = keras.Model(
            inputs=[title, body, tag],
            outputs={
                "urgent": layers.Dense(1, activation="sigmoid", name="urgent")(features),
                "department": layers.Dense(3, name="department")(features),
            },
        )
        model.compile(
            optimizer=keras.optimizers.RMSprop(0.01),
            loss={
                "urgent": keras.losses.BinaryCrossentropy(),
                "department": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            },
            loss_weights={"urgent": 1.0, "department": 0.2},
        )
    inputs = {"title": titles, "body": bodies, "tags": tags}
    answers = {"urgent": urgent, "department": department}
    history = model.fit(inputs, answers, epochs=3, batch_size=32, shuffle=False, verbose=0)
    predicted = model.predict(inputs, batch_size=32, verbose=0)
    return Outcome([model], history.history, list(predicted.values()))


class Perceptron(keras.Model):
    """A model whose call takes no `training`."""

    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(16, activation="relu")
        self.head = layers.Dense(3)

    def call(self, inputs):
        return self.head(self.hidden(inputs))


def subclassed(runtime):
    """A subclassed model that `fit` builds, from a tf.data pipeline with validation data."""
    random = generator()
    x = random.normal(size=[160, 10]).astype("float32")
    y = x[:, :3].argmax(1)
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    training = rows.take(128).shuffle(128, seed=1, reshuffle_each_iteration=False).batch(32)
    with runtime.scope():
        model = Perceptron()
        model.compile(
            keras.optimizers.Adam(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    history = model.fit(
        training, epochs=4, validation_data=rows.skip(128).batch(32), verbose=0
    ).history
    return Outcome([model], history, model.predict(x[:50], batch_size=32, verbose=0))


class Regularized(keras.Model):
    """A model whose call takes `training` and gives it to its layers."""

    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(16)
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.3)
        self.head = layers.Dense(3)

    def call(self, inputs, training=False):
        hidden = keras.activations.gelu(self.norm(self.hidden(inputs), training=training))
        return self.head(self.drop(hidden, training=training))


def subclassed_with_training(runtime):
    """A subclassed model with Dropout and BatchNormalization, and a schedule."""
    random = generator()
    x = random.normal(size=[256, 10]).astype("float32")
    y = x[:, :3].argmax(1)
    with runtime.scope():
        model = Regularized()
        schedule = keras.optimizers.schedules.CosineDecay(0.02, decay_steps=60)
        model.compile(
            keras.optimizers.AdamW(schedule),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(x, y, epochs=5, batch_size=32, verbose=0).history
    return Outcome([model], history)


class OwnStep(keras.Model):
    """A model with its own training step, loss and metrics."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self):
        return [self.loss_tracker, self.error]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = keras.losses.mean_squared_error(y, predicted)
            loss = ops.mean(loss)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        self.loss_tracker.update_state(loss)
        self.error.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        x, y = data
        predicted = self(x, training=False)
        self.loss_tracker.update_state(keras.losses.mean_squared_error(y, predicted))
        self.error.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


def train_step(runtime):
    """An own `train_step` from scratch, which calls the optimizer."""
    random = generator()
    x = random.normal(size=[96, 8]).astype("float32")
    y = x.sum(1, keepdims=True)
    with runtime.scope():
        inputs = keras.Input([8])
        hidden = layers.Dense(16, activation="tanh")(inputs)
        model = OwnStep(inputs, layers.Dense(1)(hidden))
        # Each replica's loss is the mean of its own rows, and gradients are summed, as under stock
        # tf.distribute: Adam scales that away.
        model.compile(optimizer=keras.optimizers.Adam(0.02))
    history = model.fit(x, y, epochs=5, batch_size=32, shuffle=False, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=32, verbose=0)
    return Outcome([model], {**history, "evaluated": list(evaluated)})


class Distiller(keras.Model):
    """A student that learns from a teacher: an own `compute_loss`."""

    def __init__(self, student, teacher, temperature=3.0, alpha=0.3):
        super().__init__()
        self.student = student
        self.teacher = teacher
        self.teacher.trainable = False
        self.temperature = temperature
        self.alpha = alpha
        self.distance = keras.losses.KLDivergence()

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        taught = ops.softmax(self.teacher(x, training=False) / self.temperature, axis=1)
        learned = ops.softmax(y_pred / self.temperature, axis=1)
        own = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        return self.alpha * own + (1 - self.alpha) * self.distance(taught, learned)

    def call(self, x):
        return self.student(x)


def distillation(runtime):
    """Knowledge distillation: one model trained, then frozen inside of another one."""
    random = generator()
    x = random.normal(size=[128, 10]).astype("float32")
    y = x[:, :4].argmax(1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"batch_size": 32, "shuffle": False, "verbose": 0}
    with runtime.scope():
        teacher = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(4)])
        teacher.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    teacher.fit(x, y, epochs=3, **options)
    with runtime.scope():
        student = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(4)])
        distiller = Distiller(student, teacher)
        distiller.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    history = distiller.fit(x, y, epochs=4, **options).history
    return Outcome([teacher, distiller], history)


def structured_data(runtime):
    """Normalization, StringLookup, IntegerLookup and Discretization inside of the model."""
    random = generator()
    raw = {
        "age": random.uniform(20, 80, size=[128, 1]).astype("float32"),
        "oxygen": random.normal(95, 3, size=[128, 1]).astype("float32"),
        "kind": np.array(["low", "mid", "high"])[random.integers(0, 3, size=[128, 1])],
        "visits": random.integers(0, 6, size=[128, 1]),
    }
    y = ((raw["age"] > 50) & (raw["kind"] != "low")).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((raw, y)).batch(32)
    with runtime.scope():
        inputs = {
            "age": keras.Input([1], name="age"),
            "oxygen": keras.Input([1], name="oxygen"),
            "kind": keras.Input([1], name="kind", dtype="string"),
            "visits": keras.Input([1], name="visits", dtype="int64"),
        }
        normalization = layers.Normalization()
        normalization.adapt(raw["age"])
        bins = layers.Discretization(num_bins=4, output_mode="one_hot")
        bins.adapt(raw["oxygen"])
        kinds = layers.StringLookup(output_mode="one_hot")
        kinds.adapt(raw["kind"])
        visits = layers.IntegerLookup(output_mode="one_hot")
        visits.adapt(raw["visits"])
        features = layers.concatenate(
            [
                normalization(inputs["age"]),
                bins(inputs["oxygen"]),
                kinds(inputs["kind"]),
                visits(inputs["visits"]),
            ]
        )
        hidden = layers.Dense(16, activation="relu")(features)
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(dataset, epochs=4, verbose=0).history
    return Outcome([model], history, model.predict(dataset.map(lambda x, _: x), verbose=0))


def imbalanced(runtime):
    """Class weights, metrics of confusion, and a schedule that watches the logs."""
    random = generator()
    x = random.normal(size=[256, 12]).astype("float32")
    y = (x[:, :2].sum(1, keepdims=True) > 2).astype("float32")
    with runtime.scope():
        model = keras.Sequential(
            [keras.Input([12]), layers.Dense(16, "relu"), layers.Dense(1, "sigmoid")]
        )
        model.compile(
            keras.optimizers.Adam(0.01),
            "binary_crossentropy",
            metrics=[keras.metrics.Precision(name="precision"), keras.metrics.AUC(name="auc")],
        )
    history = model.fit(
        x, y, epochs=4, batch_size=64, shuffle=False, verbose=0,
        class_weight={0: 1.0, 1: 8.0},
        validation_split=0.25,
        callbacks=[keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.5)],
    ).history  # fmt: skip
    return Outcome([model], history, model.predict(x, batch_size=64, verbose=0))


EXAMPLES = [
    Example(tickets, has_ids=True),
    Example(subclassed),
    Example(subclassed_with_training, tolerance=None),
    Example(train_step),
    Example(distillation),
    Example(structured_data),
    Example(imbalanced),
]
