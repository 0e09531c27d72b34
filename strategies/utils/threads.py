"""The threads of TensorFlow."""

import os

import tensorflow as tf


def default_inter_op_threads() -> int:
    """Returns how many operations TensorFlow runs at once in this process if no code sets it.

    Like TensorFlow, this ignores a TF_NUM_INTEROP_THREADS that is not a positive number.
    """
    in_environment = os.environ.get("TF_NUM_INTEROP_THREADS", "").strip()
    number = int(in_environment) if in_environment.isdecimal() else 0
    return number or len(os.sched_getaffinity(0))


def inter_op_threads() -> int:
    """Returns how many operations TensorFlow runs at once in this process."""
    return tf.config.threading.get_inter_op_parallelism_threads() or default_inter_op_threads()
