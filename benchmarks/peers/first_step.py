"""Takes one step on each worker; the first prints the seconds since STARTED_AT.

The weights of the workers are compared afterwards; where they differ, nothing is printed.
"""

from __future__ import annotations

import json
import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

ROWS = 128  # a worker


def make_model() -> keras.Model:
    layers = [keras.layers.Dense(1024, "relu"), keras.layers.Dense(1024, "relu")]
    return keras.Sequential([keras.Input([784]), *layers, keras.layers.Dense(10)])


def make_loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data() -> tf.data.Dataset:
    """Returns one batch of this worker's rows, others in each process."""
    # From the same examples even workers that exchange nothing would get equal weights.
    random = np.random.default_rng()
    x = random.standard_normal([ROWS, 784], dtype=np.float32)
    return tf.data.Dataset.from_tensors((x, random.integers(0, 10, [ROWS])))


def elapsed() -> float:
    return time.time() - float(os.environ["STARTED_AT"])


def by_fit() -> tuple[float, bool]:
    import strategies

    strategy = strategies.from_tf_config()
    with strategy.scope():
        model = make_model()
        model.compile("adam", make_loss())
    model.fit(strategy.distribute_datasets_from_function(lambda _: data()), verbose=0)
    seconds = elapsed()
    strategies.verify_equal(strategy, model.variables)
    return seconds, strategy.cluster_resolver.task_id == 0


def by_loop() -> tuple[float, bool]:
    import strategies

    strategy = strategies.from_tf_config()
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    loss_of = make_loss()

    def in_replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    batches = iter(strategy.distribute_datasets_from_function(lambda _: data()))
    step = tf.function(lambda: strategy.run(in_replica, args=next(batches)))
    float(step())
    seconds = elapsed()
    strategies.verify_equal(strategy, model.variables)
    return seconds, strategy.cluster_resolver.task_id == 0


def by_horovod() -> tuple[float, bool]:
    import horovod.tensorflow as hvd

    hvd.init()
    model, optimizer = make_model(), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    # Horovod asks a variable for what Keras 3's does not have; TensorFlow's beneath it does.
    variables = [variable.value for variable in model.trainable_variables]
    hvd.broadcast_variables(variables, root_rank=0)
    loss_of, batches = make_loss(), iter(data())

    @tf.function
    def step() -> tf.Tensor:
        x, y = next(batches)
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    float(step())
    seconds = elapsed()
    for variable in variables:
        of_all = hvd.allgather(tf.reshape(variable, [1, -1])).numpy()
        if not (of_all == of_all[0]).all():
            raise RuntimeError(f"Horovod's workers differ in {variable.name}.")
    return seconds, hvd.rank() == 0


def main() -> None:
    systems = {"fit": by_fit, "loop": by_loop, "horovod": by_horovod}
    seconds, is_first = systems[sys.argv[1]]()
    if is_first:
        print(f"RESULT {json.dumps({'s': seconds})}", flush=True)


if __name__ == "__main__":
    main()
