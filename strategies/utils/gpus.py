"""The GPUs that TensorFlow may use in this process."""

from __future__ import annotations

import tensorflow as tf


def count_gpus() -> int:
    """Returns the number of GPUs, including virtual ones, without initializing TensorFlow.

    GPUs that `tf.config.set_visible_devices` hides are not counted.
    """
    gpus = tf.config.get_visible_devices("GPU")
    return sum(len(tf.config.get_logical_device_configuration(gpu) or [gpu]) for gpu in gpus)


def has_virtual_gpus() -> bool:
    """Returns whether virtual GPUs share a physical one, which NCCL does not support."""
    return count_gpus() > len(tf.config.get_visible_devices("GPU"))
