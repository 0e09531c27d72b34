"""Ways to train: steps of the user's own, several optimizers, several steps an update."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from cells.lab import BATCH, CLASSES, WIDTH, Cell, Lab, Missing, check, values_of


def _model(lab: Lab) -> Any:
    layers = lab.keras.layers
    return lab.sequential(lambda: layers.Dense(8, "tanh"), lambda: layers.Dense(CLASSES))


def built_by_fit(lab: Lab) -> dict[str, Any]:
    """Subclassed model, built by `fit`"""
    keras = lab.keras
    keras.utils.set_random_seed(0)

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(8, "tanh")
            self.out = keras.layers.Dense(CLASSES)

        def call(self, inputs: Any) -> Any:
            return self.out(self.hidden(inputs))

    with lab.strategy.scope():
        model = Model()
    lab.compile(model)
    return lab.fit(model, *lab.rows())


def custom_train_step(lab: Lab) -> dict[str, Any]:
    """Custom `train_step`"""
    keras = lab.keras

    class Model(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                logits = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=logits)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.mean_loss.update_state(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            )
            return {"loss": self.mean_loss.result()}

        @property
        def metrics(self) -> list[Any]:
            return [self.mean_loss]

    def make() -> Any:
        inputs = keras.Input([WIDTH])
        hidden = keras.layers.Dense(8, "tanh")(inputs)
        model = Model(inputs, keras.layers.Dense(CLASSES)(hidden))
        model.mean_loss = keras.metrics.Mean("loss")
        return model

    model = lab.made(make)
    lab.compile(model, metrics=None)
    return lab.fit(model, *lab.rows())


def custom_loop(lab: Lab) -> dict[str, Any]:
    """Custom loop (`strategy.run`, `GradientTape`)"""
    strategy = lab.strategy
    model = _model(lab)
    with strategy.scope():
        optimizer = lab.keras.optimizers.Adam(0.02)
        optimizer.build(model.trainable_variables)
    dataset = tf.data.Dataset.from_tensor_slices(lab.rows()).batch(BATCH)

    def replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @tf.function
    def step(x: Any, y: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

    losses = []
    for _ in range(3):
        for x, y in strategy.experimental_distribute_dataset(dataset):
            losses.append(float(step(x, y)))
    check(np.isfinite(losses).all(), f"losses {losses}")
    check(sum(losses[-4:]) < sum(losses[:4]), f"the loss does not fall: {losses}")
    return {"logs": losses, "weights": values_of(model.weights)}


def two_optimizers(lab: Lab) -> dict[str, Any]:
    """Two models, two optimizers (GAN)"""
    keras, layers = lab.keras, lab.keras.layers

    class GAN(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.maker = keras.Sequential([layers.InputLayer([4]), layers.Dense(WIDTH)])
            self.judge = keras.Sequential(
                [layers.InputLayer([WIDTH]), layers.Dense(8, "tanh"), layers.Dense(1)]
            )
            self.entropy = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
            self.seen = keras.metrics.Mean("seen")

        def call(self, noise: Any) -> Any:
            return self.judge(self.maker(noise))

        def compile(self, makers: Any, judges: Any) -> None:  # type: ignore[override]
            super().compile()
            self.makers, self.judges = makers, judges

        def mean(self, target: float, logits: Any) -> Any:
            losses = self.entropy(tf.fill(tf.shape(logits), target), logits)
            self.seen.update_state(losses)
            return tf.nn.compute_average_loss(losses, global_batch_size=BATCH)

        def train_step(self, data: Any) -> Any:
            real, noise = data
            with tf.GradientTape() as tape:
                loss = self.mean(1.0, self.judge(real))
                loss += self.mean(0.0, self.judge(self.maker(noise)))
            variables = self.judge.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.judges.apply_gradients(zip(gradients, variables, strict=True))
            with tf.GradientTape() as tape:
                loss = self.mean(1.0, self.judge(self.maker(noise)))
            variables = self.maker.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.makers.apply_gradients(zip(gradients, variables, strict=True))
            return {"seen": self.seen.result()}

    def make() -> Any:
        model = GAN()
        model.build([None, 4])
        return model

    model = lab.made(make)
    with lab.strategy.scope():
        makers, judges = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, momentum=0.5)
        makers.build(model.maker.trainable_variables)
        judges.build(model.judge.trainable_variables)
        model.compile(makers, judges)
    x, _ = lab.rows()
    before = values_of(model.trainable_variables)
    noise = np.random.default_rng(4).normal(size=[len(x), 4]).astype("float32")
    logs = model.fit(x, noise, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    after = values_of(model.trainable_variables)
    check(not any(a == b for a, b in zip(before, after, strict=True)), "a weight has not changed")
    return {"logs": logs, "weights": after}


def gradient_accumulation(lab: Lab) -> dict[str, Any]:
    """Gradient accumulation"""
    sgd = lab.keras.optimizers.SGD
    if "gradient_accumulation_steps" not in inspect.signature(sgd).parameters:
        raise Missing("tf_keras has none")
    model = _model(lab)
    lab.compile(model, lambda: sgd(0.05, momentum=0.5, gradient_accumulation_steps=2))
    return lab.fit(model, *lab.rows())


def steps_per_execution(lab: Lab) -> dict[str, Any]:
    """`steps_per_execution`"""
    model = _model(lab)
    lab.compile(model, steps_per_execution=3)
    return lab.fit(model, *lab.rows())


def run_eagerly(lab: Lab) -> dict[str, Any]:
    """`run_eagerly`"""
    model = _model(lab)
    lab.compile(model, run_eagerly=True)
    return lab.fit(model, *lab.rows(), epochs=2)


def jit_compile(lab: Lab) -> dict[str, Any]:
    """`jit_compile=True`"""
    model = _model(lab)
    lab.compile(model, jit_compile=True)
    return lab.fit(model, *lab.rows())


CELLS = [
    Cell(built_by_fit, tolerance=None),
    Cell(custom_train_step),
    Cell(custom_loop),
    Cell(two_optimizers),
    Cell(gradient_accumulation),
    Cell(steps_per_execution),
    Cell(run_eagerly),
    Cell(jit_compile),
]
