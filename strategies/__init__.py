"""Strategies that train Keras models on several workers."""

from strategies.equality import verify_equal
from strategies.mirrored import MirroredStrategy
from strategies.multi_worker import MultiWorkerMirroredStrategy, from_tf_config
from strategies.reduction import ReductionOptions

__all__ = [
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ReductionOptions",
    "from_tf_config",
    "verify_equal",
]
