"""Pictures: convolutions, a network from keras.applications, generative models."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_io.program import Example, Outcome, generator


def shapes(count, size=8):
    """Returns pictures of a bright square, and which quarter it is in."""
    random = generator()
    pictures = random.uniform(0, 0.2, size=[count, size, size, 1]).astype("float32")
    quarters = random.integers(0, 4, size=count)
    half = size // 2
    for picture, quarter in zip(pictures, quarters, strict=True):
        row, column = half * (quarter // 2), half * (quarter % 2)
        picture[row : row + half, column : column + half] += 0.8
    return pictures, quarters


def convolutions(runtime):
    """The first example of keras.io: a small convolutional network."""
    pictures, quarters = shapes(96)
    y = keras.utils.to_categorical(quarters, 4)
    with runtime.scope():
        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                layers.Conv2D(8, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.Conv2D(8, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(4, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        pictures, y, batch_size=32, epochs=3, shuffle=False, validation_split=1 / 3, verbose=0
    ).history
    return Outcome([model], history, model.predict(pictures, batch_size=32, verbose=0))


def mobile_net(runtime):
    """MobileNetV2 without weights behind augmentation, fine-tuned in a head of its own."""
    random = generator()
    pictures = random.uniform(0, 255, size=[32, 32, 32, 3]).astype("float32")
    labels = (pictures.mean((1, 2, 3)) > 127.5).astype("float32")[:, None]
    with runtime.scope():
        base = keras.applications.MobileNetV2(
            [32, 32, 3], alpha=0.35, include_top=False, weights=None
        )
        inputs = keras.Input([32, 32, 3])
        x = layers.RandomFlip("horizontal")(inputs)
        x = base(layers.Rescaling(1 / 127.5, offset=-1)(x))
        x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
        model = keras.Model(inputs, layers.Dense(1)(x))
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    logs = model.fit(pictures, labels, batch_size=16, epochs=2, verbose=0).history
    with runtime.scope():
        base.trainable = False
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    frozen = [weight.numpy() for weight in base.weights]
    model.fit(pictures, labels, batch_size=16, epochs=1, verbose=0)
    for before, weight in zip(frozen, base.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), before)
    return Outcome([model], logs)


def denoising(runtime):
    """An autoencoder from noisy pictures to clean ones."""
    pictures, _ = shapes(64)
    noisy = np.clip(pictures + 0.1 * generator(1).normal(size=pictures.shape), 0, 1)
    with runtime.scope():
        inputs = keras.Input([8, 8, 1])
        x = layers.Conv2D(8, 3, activation="relu", padding="same")(inputs)
        x = layers.MaxPooling2D(2, padding="same")(x)
        x = layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same")(x)
        x = layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    history = model.fit(
        noisy, pictures, batch_size=32, epochs=3, shuffle=False, verbose=0,
        validation_data=(noisy, pictures),
    ).history  # fmt: skip
    return Outcome([model], history, model.predict(noisy, batch_size=32, verbose=0))


class Siamese(keras.Model):
    """Triplets through one network, by a loss that an own `train_step` computes."""

    def __init__(self, network, margin=0.5):
        super().__init__()
        self.network = network
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, triplet):
        anchor, near, far = (self.network(each) for each in triplet)
        return (
            ops.sum(ops.square(anchor - near), -1),
            ops.sum(ops.square(anchor - far), -1),
        )

    def train_step(self, data):
        (triplet,) = data
        with tf.GradientTape() as tape:
            loss = self._loss(triplet)
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply(gradients, self.network.trainable_weights)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def _loss(self, triplet):
        near, far = self(triplet)
        return ops.mean(ops.maximum(near - far + self.margin, 0.0))

    @property
    def metrics(self):
        return [self.loss_tracker]


def siamese(runtime):
    """Three inputs that share one network, from a zipped dataset without labels."""
    pictures, quarters = shapes(96)
    order = np.argsort(quarters, kind="stable")
    anchors = pictures[order]
    near, far = np.roll(anchors, 1, axis=0), np.roll(anchors, 48, axis=0)
    parts = [tf.data.Dataset.from_tensor_slices(each) for each in (anchors, near, far)]
    dataset = tf.data.Dataset.zip(tuple(parts)).map(lambda *three: (three,)).batch(32)
    with runtime.scope():
        network = keras.Sequential(
            [keras.Input([8, 8, 1]), layers.Flatten(), layers.Dense(8, "relu"), layers.Dense(4)]
        )
        model = Siamese(network)
        model.compile(optimizer=keras.optimizers.Adam(0.01))
    history = model.fit(dataset, epochs=4, verbose=0).history
    return Outcome([network], history)


class Sampling(layers.Layer):
    """Draws from a normal distribution."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class Variational(keras.Model):
    """An autoencoder whose divergence is an `add_loss`."""

    def __init__(self, pixels, latent=2):
        super().__init__()
        self.inner = layers.Dense(16, activation="relu")
        self.mean = layers.Dense(latent)
        self.log_variance = layers.Dense(latent)
        self.sampling = Sampling()
        self.decoder = keras.Sequential(
            [layers.Dense(16, activation="relu"), layers.Dense(pixels, activation="sigmoid")]
        )

    def call(self, inputs):
        hidden = self.inner(inputs)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        divergence = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        self.add_loss(-0.05 * ops.mean(divergence))
        return self.decoder(self.sampling((mean, log_variance)))


def variational(runtime):
    """A variational autoencoder."""
    pictures, _ = shapes(128)
    flat = pictures.reshape([128, 64])
    with runtime.scope():
        model = Variational(64)
        model.compile(keras.optimizers.Adam(0.01), loss="mse")
    history = model.fit(flat, flat, batch_size=32, epochs=5, verbose=0).history
    return Outcome([model], history)


class Adversarial(keras.Model):
    """Two networks with an optimizer each."""

    def __init__(self, discriminator, generator_, latent):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator_
        self.latent = latent
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.d_tracker = keras.metrics.Mean(name="d_loss")
        self.g_tracker = keras.metrics.Mean(name="g_loss")
        # Under any tf.distribute strategy Keras 3 builds a model by its call, and this has none.
        self.built = True

    @property
    def metrics(self):
        return [self.d_tracker, self.g_tracker]

    def compile(self, d_optimizer, g_optimizer, loss):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss

    def train_step(self, real):
        count = ops.shape(real)[0]
        noise = keras.random.normal((count, self.latent), seed=self.seed_generator)
        both = ops.concatenate([self.generator(noise), real], axis=0)
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        noise = keras.random.normal((count, self.latent), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            said = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(ops.zeros((count, 1)), said)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return {"d_loss": self.d_tracker.result(), "g_loss": self.g_tracker.result()}


def adversarial(runtime):
    """A GAN: an own `compile`, two optimizers in one `train_step`, a dataset without labels."""
    pictures, _ = shapes(128)
    dataset = tf.data.Dataset.from_tensor_slices(pictures.reshape([128, 64]))
    dataset = dataset.shuffle(128, seed=3).batch(32)
    with runtime.scope():
        discriminator = keras.Sequential(
            [keras.Input([64]), layers.Dense(16), layers.LeakyReLU(0.2), layers.Dense(1)]
        )
        generator_ = keras.Sequential(
            [keras.Input([4]), layers.Dense(16, "relu"), layers.Dense(64, "sigmoid")]
        )
        model = Adversarial(discriminator, generator_, latent=4)
        model.compile(
            d_optimizer=keras.optimizers.Adam(0.003),
            g_optimizer=keras.optimizers.Adam(0.003),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
        )
    history = model.fit(dataset, epochs=4, verbose=0).history
    return Outcome([discriminator, generator_], history)


EXAMPLES = [
    Example(convolutions),
    Example(mobile_net, tolerance=None, falls=None),
    Example(denoising),
    # Its own step takes means of a replica's rows, whose sum is not the mean of all rows; that
    # Adam forgets the scale holds for gradients far above its epsilon alone.
    Example(siamese, tolerance=None),
    Example(variational, tolerance=None),
    Example(adversarial, tolerance=None, falls="d_loss"),
]
