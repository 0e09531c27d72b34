"""Strategies that train Keras models on several devices and workers."""

from typing import TYPE_CHECKING, Any

from strategies import callbacks
from strategies.central_storage import CentralStorageStrategy
from strategies.choice import from_tf_config
from strategies.embedding import Admission, Eviction, FeatureConfig, TableConfig
from strategies.embedding.prefetch import prefetch_rows
from strategies.equality import verify_equal
from strategies.files import own_path, writing
from strategies.mirrored import MirroredStrategy
from strategies.multi_worker import MultiWorkerMirroredStrategy
from strategies.parameter_server import ParameterServerStrategy
from strategies.reading import read_files
from strategies.reduction import ReductionOptions
from strategies.server.options import ParameterServerOptions
from strategies.workers import barrier
from tf_config.capacity import plan_capacity

if TYPE_CHECKING:
    from strategies.embedding.keras_layer import DistributedEmbedding
    from strategies.loss_scaling import LossScaleOptimizer

__all__ = [
    "Admission",
    "CentralStorageStrategy",
    "DistributedEmbedding",
    "Eviction",
    "FeatureConfig",
    "LossScaleOptimizer",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ParameterServerOptions",
    "ParameterServerStrategy",
    "ReductionOptions",
    "TableConfig",
    "barrier",
    "callbacks",
    "from_tf_config",
    "own_path",
    "plan_capacity",
    "prefetch_rows",
    "read_files",
    "verify_equal",
    "writing",
]


def __getattr__(name: str) -> Any:
    # Not at once: they bring Keras 3, which a script for tf_keras has no use for.
    if name == "LossScaleOptimizer":
        from strategies.loss_scaling import LossScaleOptimizer

        return LossScaleOptimizer
    if name == "DistributedEmbedding":
        from strategies.embedding.keras_layer import DistributedEmbedding

        return DistributedEmbedding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
