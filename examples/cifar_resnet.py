r"""Trains a ResNet on files in the format of CIFAR-10, and resumes after an interruption.

    $ python examples/cifar_data.py --directory logs/cifar --images 2000 --test_images 500
    $ tf-config run --workers 2 examples/cifar_resnet.py \
        --data logs/cifar --logs logs/resnet --epochs 2
    [worker 0] test accuracy: 0.950
    $ tf-config run --workers 2 examples/cifar_resnet.py \
        --data logs/cifar --logs logs/resnet --epochs 3
    [worker 0] Epoch 3/3
    [worker 0] test accuracy: 0.988

The second run begins at the third epoch: `strategies.callbacks.Checkpoint` finds the checkpoint of
the first one in `logs/resnet/checkpoints`. It does the same after a restart, so with
`tf-config run --max-restarts 3` a job survives the loss of a worker. `tensorboard --logdir logs`
shows the curves.

`--data` is a directory with the files of "cifar-10-binary.tar.gz", or with those that
examples/cifar_data.py writes. `--blocks 3` is the ResNet-20 of He et al., "Deep Residual Learning
for Image Recognition", 2015.
"""

from __future__ import annotations

from pathlib import Path

import keras
import tensorflow as tf
from absl import app, flags

import strategies

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "data", None, "Directory with data_batch_*.bin and test_batch.bin.", required=True
)
flags.DEFINE_string("logs", None, "Directory for checkpoints and TensorBoard.", required=True)
flags.DEFINE_integer("epochs", 10, "Epochs, including those before the job was interrupted.", 1)
flags.DEFINE_integer("batch_size", 128, "Images in a step, of all workers together.", 1)
flags.DEFINE_float("learning_rate", 3e-3, "Learning rate of Adam.", 0)
flags.DEFINE_integer("blocks", 1, "Residual blocks in each of the three stages.", 1)
flags.DEFINE_integer("every_steps", 100, "Steps from one checkpoint to the next.", 1)

SIZE, CHANNELS = 32, 3
RECORD_BYTES = 1 + CHANNELS * SIZE * SIZE


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an image, float32 [32, 32, 3] from -1 to 1, and its label."""
    numbers = tf.cast(tf.io.decode_raw(record, tf.uint8), tf.int32)
    image = tf.reshape(numbers[1:], [CHANNELS, SIZE, SIZE])
    return tf.cast(tf.transpose(image, [1, 2, 0]), tf.float32) / 127.5 - 1, numbers[0]


def augment(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Shifts an image by up to four pixels."""
    image = tf.pad(image, [[4, 4], [4, 4], [0, 0]])
    return tf.image.random_crop(image, [SIZE, SIZE, CHANNELS]), label


def read(files: list[Path]) -> tf.data.Dataset:
    """Returns the images and labels of all files, one by one."""
    records = tf.data.FixedLengthRecordDataset([str(file) for file in files], RECORD_BYTES)
    # Keras has to know the number of steps to save checkpoints within an epoch.
    count = sum(file.stat().st_size // RECORD_BYTES for file in files)
    return records.apply(tf.data.experimental.assert_cardinality(count)).map(parse)


def convolve(x, filters: int, strides: int = 1):
    x = keras.layers.Conv2D(
        filters,
        3,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(1e-4),
    )(x)
    return keras.layers.BatchNormalization(momentum=0.9)(x)


def make_model(blocks: int) -> keras.Model:
    inputs = keras.Input([SIZE, SIZE, CHANNELS])
    x = keras.layers.Activation("relu")(convolve(inputs, 16))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            y = keras.layers.Activation("relu")(convolve(x, filters, strides))
            y = convolve(y, filters)
            if strides > 1:  # without a convolution: the new channels are zeros
                x = keras.layers.AveragePooling2D(strides)(x)
                x = keras.ops.pad(x, [[0, 0], [0, 0], [0, 0], [0, filters // 2]])
            x = keras.layers.Activation("relu")(keras.layers.Add()([x, y]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are accepted. Received: {argv[1:]}.")
    data, logs = Path(FLAGS.data), Path(FLAGS.logs)
    train_files, test_files = sorted(data.glob("data_batch_*.bin")), [data / "test_batch.bin"]
    if not train_files or not test_files[0].exists():
        raise app.UsageError(
            "--data must be a directory with data_batch_*.bin and test_batch.bin. Received: "
            f"{data}. Write such files by examples/cifar_data.py."
        )
    # The same seed in each run: a resumed run reads the data in the order of the interrupted one.
    keras.utils.set_random_seed(1)
    strategy = strategies.from_tf_config()

    train = read(train_files)
    train = train.shuffle(10_000).map(augment).batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE)
    test = read(test_files).batch(FLAGS.batch_size)

    with strategy.scope():
        model = make_model(FLAGS.blocks)
        model.compile(
            keras.optimizers.Adam(FLAGS.learning_rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(
        train,
        epochs=FLAGS.epochs,
        shuffle=False,
        validation_data=test,
        callbacks=[
            strategies.callbacks.Checkpoint(logs / "checkpoints", every_steps=FLAGS.every_steps),
            strategies.callbacks.on_first_worker(keras.callbacks.TensorBoard(logs), strategy),
        ],
    )
    _, accuracy = model.evaluate(test, verbose=0)
    strategy.print(f"test accuracy: {accuracy:.3f}")
    with strategies.writing(logs / "model.keras", strategy) as path:
        model.save(path)


if __name__ == "__main__":
    app.run(main)
