"""Strategies that train Keras models on several workers."""

from strategies.equality import verify_equal
from strategies.mirrored import MirroredStrategy
from strategies.multi_worker import MultiWorkerMirroredStrategy, from_tf_config

__all__ = ["MirroredStrategy", "MultiWorkerMirroredStrategy", "from_tf_config", "verify_equal"]
