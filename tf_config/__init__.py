"""The tasks and addresses of a training job, and TF_CONFIG. Does not import TensorFlow."""

from tf_config.address import Address
from tf_config.builder import local_cluster
from tf_config.cluster import ClusterSpec, Task, TFConfig
from tf_config.errors import ClusterConfigError
from tf_config.moved_modules import keep_old_names as _keep_old_names

_keep_old_names()

__all__ = ["Address", "ClusterConfigError", "ClusterSpec", "TFConfig", "Task", "local_cluster"]
