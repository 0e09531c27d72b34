"""Fine-tunes a network in mixed precision with accumulated gradients, on one worker or on many.

    $ tf-config run --workers 2 examples/fine_tune.py
    [worker 0] optimizer: LossScaleOptimizer
    [worker 0] accuracy before 0.211, with a new head 0.810, tuned 0.878

A network learns the digits 0 to 4. Its convolutions are frozen and get a new head, which learns
the digits 5 to 9 from 200 images; then all of it is tuned with a small learning rate. Under
`mixed_float16` layers compute in 16 bits, and Keras scales the loss. The optimizer adds up the
gradients of four batches of 16 images before it changes weights, once for all 64. The images are
those that scikit-learn carries.
"""

import keras
from sklearn.datasets import load_digits

import strategies

ACCUMULATED = 4  # batches


def compile_(model, learning_rate, **options):
    optimizer = keras.optimizers.Adam(learning_rate, **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])


def make_base():
    return keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
        ]
    )


def with_head(base):
    # Logits in float32: a loss of 16 bits is too coarse.
    return keras.Sequential([base, keras.layers.Dense(5, dtype="float32")])


def main():
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_global_policy("mixed_float16")
    strategy = strategies.from_tf_config()
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    x, y = images[labels >= 5], labels[labels >= 5] - 5
    train, test = (x[:200], y[:200]), (x[200:], y[200:])

    with strategy.scope():
        base = make_base()
        first = with_head(base)
        compile_(first, 1e-3)
    first.fit(images[labels < 5], labels[labels < 5], batch_size=64, epochs=3)

    with strategy.scope():
        base.trainable = False
        model = with_head(base)
        compile_(model, 1e-2, gradient_accumulation_steps=ACCUMULATED)
    _, before = model.evaluate(*test, verbose=0)
    model.fit(*train, batch_size=16, epochs=10)
    _, frozen = model.evaluate(*test, verbose=0)

    with strategy.scope():
        base.trainable = True
        compile_(model, 1e-3, gradient_accumulation_steps=ACCUMULATED)
    model.fit(*train, batch_size=16, epochs=10)
    _, tuned = model.evaluate(*test, verbose=0)

    strategy.print(f"optimizer: {type(model.optimizer).__name__}")
    strategy.print(f"accuracy before {before:.3f}, with a new head {frozen:.3f}, tuned {tuned:.3f}")


if __name__ == "__main__":
    main()
