"""Writes small pictures in the binary format of CIFAR-10, for examples/cifar_resnet.py.

    $ python examples/cifar_data.py --directory logs/cifar --images 2000 --test_images 500
    logs/cifar/data_batch_*.bin: 2000 images, 10 classes
    logs/cifar/test_batch.bin: 500 images, 10 classes

As in "cifar-10-binary.tar.gz", a record is one byte with the label and 3072 bytes with the image:
32 rows of 32 pixels, all of the red channel, then green, then blue. Five files are for training and
one is for testing. The images are synthetic: each class is a grating of its own direction and
color, with a random phase, contrast and noise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("directory", None, "Where the files are written.", required=True)
flags.DEFINE_integer("images", 10_000, "Images to train on.", 5)
flags.DEFINE_integer("test_images", 2_000, "Images to test on.", 1)
flags.DEFINE_integer("seed", 1, "Seed of the images.", 0)

CLASSES, SIZE, CHANNELS = 10, 32, 3
TRAIN_FILES = 5
NOISE = 0.25


def make_records(count: int, random: np.random.Generator) -> np.ndarray:
    """Returns `count` records, uint8 [count, 1 + 3072]."""
    labels = random.integers(CLASSES, size=count)
    angles = np.pi * labels / CLASSES + random.normal(0, 0.06, count)
    phases, contrasts = random.uniform(0, 2 * np.pi, count), random.uniform(0.2, 0.4, count)
    y, x = np.mgrid[:SIZE, :SIZE]
    waves = np.multiply.outer(np.cos(angles), x) + np.multiply.outer(np.sin(angles), y)
    waves = np.sin(0.6 * waves + phases[:, None, None]) * contrasts[:, None, None]
    # A class and its neighbor differ in their direction alone.
    colors = np.array([[1.0, 0.6, 0.3], [0.3, 0.6, 1.0]])[labels // 2 % 2]
    images = 0.5 + waves[:, None] * colors[:, :, None, None]
    images += random.normal(0, NOISE, images.shape)
    pixels = np.clip(np.rint(images * 255), 0, 255).astype(np.uint8)
    return np.concatenate([labels[:, None].astype(np.uint8), pixels.reshape(count, -1)], axis=1)


def write(directory: Path, images: int, test_images: int, seed: int) -> None:
    """Writes the files of CIFAR-10.

    Raises:
      FileExistsError: if the directory has such files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if existing := sorted(directory.glob("*_batch*.bin")):
        raise FileExistsError(
            f"The directory cannot contain images yet. Received: {directory} with "
            f"{existing[0].name}. Use another directory, or delete them."
        )
    random = np.random.default_rng(seed)
    for number, part in enumerate(np.array_split(np.arange(images), TRAIN_FILES), start=1):
        make_records(len(part), random).tofile(directory / f"data_batch_{number}.bin")
    make_records(test_images, random).tofile(directory / "test_batch.bin")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are accepted. Received: {argv[1:]}.")
    write(Path(FLAGS.directory), FLAGS.images, FLAGS.test_images, FLAGS.seed)
    print(f"{FLAGS.directory}/data_batch_*.bin: {FLAGS.images} images, {CLASSES} classes")
    print(f"{FLAGS.directory}/test_batch.bin: {FLAGS.test_images} images, {CLASSES} classes")


if __name__ == "__main__":
    app.run(main)
