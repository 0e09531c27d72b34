"""Trains the click model by TensorFlow's own ParameterServerStrategy and its coordinator.

ctr_coordinator.py sgd|adam WORKERS SERVERS

This process coordinates; it starts the workers and servers itself, and ends them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

# With one thread between operations, as all others have, TensorFlow's coordinator waits for itself.
os.environ["TF_NUM_INTEROP_THREADS"] = "4"

import tensorflow as tf
from ctr import Lookup, data, make_model, optimizer
from ctr_data import ROWS, STEPS, WARM_UP, check_loss, collect_garbage

from tf_config import TFConfig, local_cluster

SERVER = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
tf.distribute.Server(
    resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
).join()
"""


def samples_a_second(name: str) -> float:
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = make_model(Lookup)
        update = optimizer(name)
        update.build(model.trainable_variables)

    def in_replica(x: tuple[tf.Tensor, tf.Tensor], y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            probability = model(x, training=True)
            loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(y, probability))
        gradients = tape.gradient(loss, model.trainable_variables)
        update.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batches: tf.data.Iterator) -> tf.Tensor:
        return strategy.run(in_replica, args=next(batches))

    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(lambda _: data())
        )
    )
    workers = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    for count in (WARM_UP, STEPS):
        collect_garbage()
        start = time.perf_counter()
        for _ in range(count * len(workers)):
            last = coordinator.schedule(step, args=(batches,))
        coordinator.join()
    taken = time.perf_counter() - start
    check_loss(float(last.fetch()))
    return STEPS * len(workers) * ROWS / taken


def main() -> None:
    name, workers, servers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cluster = local_cluster(workers, chief=True, ps=servers)
    started = []
    for task in cluster.addresses:
        environ = {**os.environ, "TF_CONFIG": TFConfig(cluster, task).to_json()}
        if task.type == "chief":
            os.environ.update(environ)
        else:
            started.append(subprocess.Popen([sys.executable, "-c", SERVER], env=environ))
    try:
        print(f"RESULT {json.dumps({'samples/s': samples_a_second(name)})}", flush=True)
    finally:
        for process in started:
            process.kill()
            process.wait()
    # To leave in good order takes a minute, for TensorFlow still asks the ended ones for functions.
    os._exit(0)


if __name__ == "__main__":
    main()
