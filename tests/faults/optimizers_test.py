"""Going on with models that have further optimizers, and in further calls of fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.compat.keras import optimizers_of

pytestmark = pytest.mark.training

ROWS = np.random.default_rng(0).normal(size=[64, 3]).astype("float32")


class TwoPlayers(keras.Model):
    """A GAN as Keras's examples have it."""

    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        self.maker = keras.Sequential([keras.Input([2]), keras.layers.Dense(3)])
        self.built = True

    def compile(self, critic_optimizer, maker_optimizer):
        super().compile()
        self.critic_optimizer = critic_optimizer
        self.others = [maker_optimizer]

    def train_step(self, real):
        noise = real[:, :2]
        with tf.GradientTape() as tape:
            made = self.critic(self.maker(noise))
            loss = tf.reduce_mean(tf.nn.softplus(made) + tf.nn.softplus(-self.critic(real)))
        variables = self.critic.trainable_weights
        self.critic_optimizer.apply(tape.gradient(loss, variables), variables)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.softplus(-self.critic(self.maker(noise))))
        variables = self.maker.trainable_weights
        self.others[0].apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class Interrupted(keras.callbacks.Callback):
    """Ends a job in the middle of its second epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.critic_optimizer.iterations == 6:
            raise InterruptedError


def players(is_built=True):
    keras.utils.set_random_seed(0)
    model = TwoPlayers()
    model.compile(keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.05))
    if is_built:
        model.critic_optimizer.build(model.critic.trainable_variables)
        model.others[0].build(model.maker.trainable_variables)
    return model


def fit(model, *callbacks):
    data = tf.data.Dataset.from_tensor_slices(ROWS).batch(16)
    model.fit(data, epochs=3, callbacks=list(callbacks), shuffle=False, verbose=0)
    two = model.critic_optimizer, model.others[0]
    return [*model.variables, *(variable for one in two for variable in one.variables)]


def test_all_optimizers_of_a_model_go_on(tmp_path):
    expected = fit(players())
    assert len(optimizers_of(players())) == 3  # with that of `compile`, which nobody uses
    checkpoint = strategies.callbacks.Checkpoint(tmp_path, every_steps=1)
    with pytest.raises(InterruptedError):
        fit(players(), checkpoint, Interrupted())
    found = fit(players(), strategies.callbacks.Checkpoint(tmp_path, every_steps=1))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_optimizer_that_could_not_be_restored_is_refused_at_the_first_start(tmp_path):
    with pytest.raises(ValueError, match="built before fit.*Received: 'adam"):
        fit(players(is_built=False), strategies.callbacks.Checkpoint(tmp_path, every_steps=1))


def test_a_further_fit_trains_all_its_epochs(tmp_path):
    def model():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    def fit(model, *callbacks):
        history = model.fit(ROWS, ROWS[:, :1], epochs=2, callbacks=list(callbacks), verbose=0)
        return history.epoch

    assert fit(model(), strategies.callbacks.Checkpoint(tmp_path, every_steps=1)) == [0, 1]
    again = model()
    assert fit(again, strategies.callbacks.Checkpoint(tmp_path, every_steps=1)) == []
    assert fit(again) == [0, 1]
