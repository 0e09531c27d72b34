"""Strategies that train Keras models on several devices and workers.

Importing this package registers `DistributedEmbedding`, so that Keras 3, and tf_keras once it is
imported, can load saved models that contain it.
"""

from strategies import callbacks
from strategies.central_storage import CentralStorageStrategy
from strategies.collectives.workers import barrier, worker_rank
from strategies.data.read_files import read_files
from strategies.drawing import draw_placement
from strategies.embedding import Admission, Eviction, FeatureConfig, TableConfig
from strategies.embedding.keras_layer import DistributedEmbedding
from strategies.embedding.prefetch import prefetch_rows
from strategies.embedding.registration import register_with_tf_keras as _register_with_tf_keras
from strategies.equality import verify_equal
from strategies.factory import from_tf_config
from strategies.files.collective_writing import own_path, writing
from strategies.live.publisher import export, export_delta
from strategies.loss_scaling import LossScaleOptimizer
from strategies.mirrored import MirroredStrategy
from strategies.moved_modules import MOVED as _MOVED
from strategies.multi_worker import MultiWorkerMirroredStrategy
from strategies.parameter_server import ParameterServerStrategy
from strategies.ps.options import ParameterServerOptions
from strategies.reduction import ReductionOptions
from tf_config.capacity import plan_capacity
from tf_config.moved_modules import keep_old_names as _keep_old_names

_keep_old_names(_MOVED)
_register_with_tf_keras()

__version__ = "0.1.0"

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
    "draw_placement",
    "export",
    "export_delta",
    "from_tf_config",
    "own_path",
    "plan_capacity",
    "prefetch_rows",
    "read_files",
    "verify_equal",
    "worker_rank",
    "writing",
]
