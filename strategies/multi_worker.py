"""Synchronous training on several workers, configured by TF_CONFIG alone."""

from __future__ import annotations

import os
from collections.abc import Mapping

import tensorflow as tf
from absl import logging

from strategies.collectives import Collectives
from strategies.collectives.selection import (
    connect_workers,
    resolve_communication,
    validate_options,
    with_implementation,
)
from strategies.core.extended import ReplicatedExtended
from strategies.core.progress_bars import print_whole_bars
from strategies.core.resolver import config_of, resolver_of
from strategies.core.scope_use import warn_of_training_outside
from strategies.core.seeds import share_seed
from strategies.core.startup_message import announce
from strategies.mirrored import ReplicatedStrategy, local_devices
from strategies.reduction import ReductionOptions
from strategies.reduction.options import with_bucket_bytes
from strategies.utils.gpus import count_gpus
from tf_config import TFConfig
from tf_config.launcher.settings import (
    OWN_GPUS_VARIABLE,
    START_TIMEOUT_SECONDS,
    START_TIMEOUT_VARIABLE,
)
from tf_config.worker_range import WorkerRange

# If all variables of a group are set, the process sees no other task's GPUs: under tf-config's
# --gpus-per-worker, and under Slurm's --gpus-per-task if srun started it.
_OWN_GPUS = ((OWN_GPUS_VARIABLE,), ("SLURM_GPUS_PER_TASK", "SLURM_STEP_ID"))


class MultiWorkerMirroredStrategy(ReplicatedStrategy, tf.distribute.MultiWorkerMirroredStrategy):
    """Synchronous training on all workers of TF_CONFIG, with mirrored variables.

    Each worker computes on its examples of the batch; the gradients are summed over the workers,
    and every worker makes the same update. The variables are bit-identical on all workers, and N
    workers with batches of B examples each train like one process with batches of N*B examples.
    Without TF_CONFIG, the strategy has one worker.

    Use it like `tf.distribute.MultiWorkerMirroredStrategy`, with Keras 3 or tf_keras:

    >>> import keras, numpy as np
    >>> strategy = MultiWorkerMirroredStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> history = model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=4, verbose=0)
    >>> strategy.num_replicas_in_sync
    1

    * The batch size given to Keras is that of all workers together.
    * Initial values are the first worker's, whatever the seeds of the others.
    * `fit` and `evaluate` return means over all workers, and `predict` returns all predictions, on
      every worker.
    * A float variable that is not trainable and has no aggregation, such as the moving mean of
      Keras 3's BatchNormalization, is averaged over the workers when it is written; a worker
      without examples in that step is left out of the mean.
    * If no global seed is set, all workers get the same random one, because they must shuffle
      alike. Create the strategy before the dataset.

    Args:
      cluster_resolver: the cluster and the task of this process, instead of TF_CONFIG: any of
        TensorFlow's resolvers, such as `SimpleClusterResolver`. Also the first argument of
        `tf.distribute.experimental.MultiWorkerMirroredStrategy`, a `CollectiveCommunication` such
        as RING; its resolver is then the second argument.
      communication_options: `tf.distribute.experimental.CommunicationOptions`. `bytes_per_pack`
        sets `bucket_bytes` of `options`; `implementation` and `timeout_seconds` are for
        TensorFlow's own collectives.
      communication: how the workers exchange values: "shared_memory" for workers of one Linux host
        without GPUs, "horovod", "tensorflow" for TensorFlow's own collectives, which need no
        other software, or "auto" for the first of these that all workers can use. None means the
        environment variable KERAS_STRATEGIES_COMMUNICATION, or "auto". A `CollectiveCommunication`
        is the `implementation` of `communication_options`.
      num_replicas: the number of replicas of each worker, the same on all workers. Each replica
        uses a GPU of its own, or a logical CPU if there are no GPUs. None means all GPUs of the
        worker, which are an equal share of its host's, or one CPU.
      options: how gradients are reduced; the same on all workers.
      start_timeout: seconds to wait at the start for the other workers. None means the value of
        `tf-config run --start-timeout`, or 300.

    Raises:
      ClusterConfigError: if TF_CONFIG is wrong, or has tasks that this strategy does not use.
      ValueError: if there are not enough devices, or not the same number on all workers, or if
        Horovod cannot do what the communication options ask for.
      ImportError: if Horovod is requested and cannot be imported.
      RuntimeError: if TensorFlow's own collectives would start after the first tensor was created.
      TimeoutError: if a worker does not connect in time; the message names it.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver
        | tf.distribute.experimental.CommunicationImplementation
        | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions
        | tf.distribute.cluster_resolver.ClusterResolver
        | None = None,
        *,
        communication: str | tf.distribute.experimental.CommunicationImplementation | None = None,
        num_replicas: int | None = None,
        options: ReductionOptions | None = None,
        start_timeout: float | None = None,
    ):
        cluster_resolver, communication_options, communication = with_implementation(
            cluster_resolver, communication_options, communication
        )
        communication_options = validate_options(communication_options)
        options = with_bucket_bytes(options, communication_options)
        config = TFConfig.from_env() if cluster_resolver is None else config_of(cluster_resolver)
        if config is not None and (elastic := WorkerRange.from_env()) is not None:
            raise elastic_error(type(self).__name__, elastic)
        devices = local_devices(num_replicas, gpus_of(config))
        collectives, way = connect_workers(
            config,
            resolve_communication(communication),
            communication_options,
            start_timeout_seconds(start_timeout),
            devices[0],
        )
        # Before any gradient is reduced: with different numbers of replicas, workers would sum
        # different gradients.
        _check_replicas(collectives, len(devices))
        # Stock's class is a base because Keras checks for it to gather logs and predictions. Its
        # constructor is not called: it starts a TensorFlow server on the same port.
        resolver = resolver_of(config) if cluster_resolver is None else cluster_resolver
        extended = ReplicatedExtended(self, collectives, devices, options, resolver)
        tf.distribute.Strategy.__init__(self, extended)
        print_whole_bars(is_first=collectives.rank == 0)
        if collectives.size > 1 or len(devices) > 1:
            announce(self, collectives, devices, way)
        if collectives.size > 1:
            logging.debug("%d workers of %d replicas: %s", collectives.size, len(devices), options)
            warn_of_training_outside(type(self).__name__, collectives.size)
            share_seed(lambda seed: int(collectives.broadcast(tf.constant(seed, tf.int64))))


def elastic_error(strategy: str, workers: WorkerRange) -> ValueError:
    """Returns the error to raise for a strategy whose workers all take part in each step.

    Args:
      strategy: a description of the strategy.
      workers: the numbers of workers that the job was started with.
    """
    return ValueError(
        f"--workers {workers} requires ParameterServerStrategy with mode='async', 'half_async' or "
        f"'geo', because only their workers do not wait for each other. Received: {strategy}. To "
        f"restart with fewer workers after a failure, use --workers {workers.most} --min-workers "
        f"{workers.least} --max-restarts 3 instead."
    )


def start_timeout_seconds(seconds: float | None, environ: Mapping[str, str] = os.environ) -> float:
    """Returns the timeout of the start in seconds, from the argument or the environment.

    Raises:
      ValueError: if it is not a number of seconds above 0.
    """
    setting = (
        environ.get(START_TIMEOUT_VARIABLE, START_TIMEOUT_SECONDS) if seconds is None else seconds
    )
    try:
        value = float(setting)
    except (TypeError, ValueError):
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(
            f"start_timeout must be a number of seconds above 0. Received: {setting!r}. Correct "
            f"the argument start_timeout or the environment variable {START_TIMEOUT_VARIABLE}."
        )
    return value


def gpus_of(config: TFConfig | None, environ: Mapping[str, str] = os.environ) -> range:
    """Returns the numbers of this worker's GPUs; the workers of a host share its GPUs evenly."""
    gpus = count_gpus()
    if config is None or config.task not in config.cluster.training_tasks:
        return range(gpus)
    if any(all(environ.get(name) for name in group) for group in _OWN_GPUS):
        return range(gpus)
    tasks = config.cluster.training_tasks
    here = config.cluster.addresses[config.task].host
    local = [task for task in tasks if config.cluster.addresses[task].host == here]
    if gpus < len(local):  # CUDA_VISIBLE_DEVICES may give each worker its own, all numbered 0
        if gpus and not environ.get("CUDA_VISIBLE_DEVICES"):
            logging.warning(
                "Each worker must have its own GPU. Received: %d workers on this host, where "
                "TensorFlow sees %d GPUs. Start fewer workers, set CUDA_VISIBLE_DEVICES=-1 to "
                "train on the CPU, or set %s=1 if each worker sees a different GPU.",
                len(local), gpus, OWN_GPUS_VARIABLE,
            )  # fmt: skip
        return range(gpus)
    each = gpus // len(local)
    return range(local.index(config.task) * each, (local.index(config.task) + 1) * each)


def _check_replicas(collectives: Collectives, replicas: int) -> None:
    counts = collectives.all_gather(tf.constant([replicas])).numpy().tolist()
    if len(set(counts)) > 1:
        raise ValueError(
            f"All workers must have the same number of replicas. Received: {counts}, by rank. Use "
            "the same num_replicas and the same number of devices on all of them."
        )
