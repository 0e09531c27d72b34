"""Strategies that train Keras models on several workers."""

from strategies import callbacks
from strategies.equality import verify_equal
from strategies.files import own_path, writing
from strategies.mirrored import MirroredStrategy
from strategies.multi_worker import MultiWorkerMirroredStrategy, from_tf_config
from strategies.reading import read_files
from strategies.reduction import ReductionOptions
from strategies.workers import barrier

__all__ = [
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ReductionOptions",
    "barrier",
    "callbacks",
    "from_tf_config",
    "own_path",
    "read_files",
    "verify_equal",
    "writing",
]
