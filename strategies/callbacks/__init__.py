"""Callbacks for training on several workers, for Keras 3 and tf_keras.

`Checkpoint` is for Keras 3 only.
"""

from strategies.callbacks.checkpoint import Checkpoint
from strategies.callbacks.first_worker import on_first_worker
from strategies.callbacks.nan import TerminateOnNaN
from strategies.callbacks.throughput import Throughput
from strategies.callbacks.timeline import StepTimeline
from strategies.callbacks.warmup import LearningRateWarmup

__all__ = [
    "Checkpoint",
    "LearningRateWarmup",
    "StepTimeline",
    "TerminateOnNaN",
    "Throughput",
    "on_first_worker",
]
