"""Trains a small network on real handwritten digits, on one worker or on many.

    $ tf-config run --workers 2 examples/digits.py
    [worker 0] test accuracy: 0.9889
    [worker 0] training speed: ... samples/s
    [worker 0] weights: equal to the bit on all 2 workers, SHA-256 ...

The data are the 1,797 images of 8x8 pixels that scikit-learn carries (UCI, "Optical Recognition
of Handwritten Digits"). Only the line that makes the strategy and the `with` belong to
distribution; everything else is plain Keras.
"""

import time

import keras
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import strategies

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 12, "How often the training images are gone through.", 1)
flags.DEFINE_integer("batch_size", 64, "Images per step, of all workers together.", 1)


class Throughput(keras.callbacks.Callback):
    """Measures images a second, without the first epoch, which builds the graph."""

    def __init__(self, images: int):
        super().__init__()
        self._images = images
        self._seconds: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self._seconds.append(time.perf_counter() - self._start)

    @property
    def samples_per_second(self) -> float:
        seconds = self._seconds[1:] or self._seconds
        return self._images * len(seconds) / sum(seconds)


def make_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.RandomTranslation(0.1, 0.1, fill_mode="constant"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10),
        ]
    )


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"No arguments but flags are known. Received: {argv[1:]}.")
    keras.utils.set_random_seed(3)  # the same weights and shuffling in every run
    strategy = strategies.from_tf_config()

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )

    with strategy.scope():
        model = make_model()
        model.compile(
            optimizer=keras.optimizers.Adam(2e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    throughput = Throughput(len(train_images))
    model.fit(
        train_images,
        train_labels,
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        validation_data=(test_images, test_labels),
        callbacks=[throughput],
    )

    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    digest = strategies.verify_equal(strategy, model.variables)
    strategy.print(f"test accuracy: {accuracy:.4f}")
    strategy.print(f"training speed: {throughput.samples_per_second:.0f} samples/s")
    workers = strategy.num_replicas_in_sync
    equal = f"equal to the bit on all {workers} workers, " if workers > 1 else ""
    strategy.print(f"weights: {equal}SHA-256 {digest[:16]}")


if __name__ == "__main__":
    app.run(main)
