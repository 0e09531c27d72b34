"""Handwritten digits, and networks that read them, for the tutorials."""

import importlib
import sys

import tensorflow as tf
from sklearn.datasets import load_digits

import strategies

keras = importlib.import_module(sys.argv[1])
# The one thing that a user changes: where the strategies come from.
distribute = {"ours": strategies, "stock": tf.distribute}[sys.argv[2]]
directory = sys.argv[3]
# The tutorials have no seed. What is learned in so few steps would hang on chance.
keras.utils.set_random_seed(0)


def arrays():
    data = load_digits()
    return (data.images / 16).astype("float32"), data.target.astype("int64")


def dataset(batch_size):
    images, labels = arrays()
    rows = tf.data.Dataset.from_tensor_slices((images, labels))
    return rows.shuffle(len(labels)).repeat().batch(batch_size)


def network(regularizer=None):
    layers = keras.layers
    return keras.Sequential(
        [
            layers.InputLayer([8, 8]),
            layers.Reshape([8, 8, 1]),
            layers.Conv2D(16, 3, activation="relu", kernel_regularizer=regularizer),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


def each_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def is_chief(task_type, task_id):
    return task_type in (None, "chief") or (task_type == "worker" and task_id == 0)


def path_to_write(path, task_type, task_id):
    """Returns the path itself for the chief, and one in a directory of their own for the others."""
    if is_chief(task_type, task_id):
        return path
    own = tf.io.gfile.join(directory, f"of-worker-{task_id}")
    tf.io.gfile.makedirs(own)
    return tf.io.gfile.join(own, path.rpartition("/")[2])
