"""The topology of a training job: tasks, clusters and TF_CONFIG. Does not import TensorFlow."""

from tf_config.address import Address
from tf_config.builder import local_cluster
from tf_config.cluster import ClusterSpec, Task, TFConfig
from tf_config.errors import ClusterConfigError

__all__ = ["Address", "ClusterConfigError", "ClusterSpec", "TFConfig", "Task", "local_cluster"]
