"""The threads of TensorFlow."""

import os

import tensorflow as tf


def inter_op_threads() -> int:
    """Returns how many operations TensorFlow runs at once in this process, as it was configured."""
    configured = tf.config.threading.get_inter_op_parallelism_threads()
    in_environment = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    return configured or int(in_environment or 0) or len(os.sched_getaffinity(0))
