"""Trains the network of mirrored.py on the workers of TF_CONFIG; prints samples a second.

mlp.py fit|fit_reduce|fit_horovod|loop|alone|stock|horovod
mlp.py keras|fit BATCHES

With BATCHES, one process trains, each step on so many workers' batches: by Keras alone, or under
this package's strategy.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from horovod_start import start

import strategies

ROWS = 128  # a step and worker
SHORT = "--short" in sys.argv
STEPS, WARM_UP = (10, 5) if SHORT else (300, 50)


def make_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input([784]),
            keras.layers.Dense(1024, "relu"),
            keras.layers.Dense(1024, "relu"),
            keras.layers.Dense(10),
        ]
    )


def data() -> tf.data.Dataset:
    """Returns endless batches of this worker's examples, others in each process."""
    # From the same examples even workers that exchange nothing would get equal weights.
    random = np.random.default_rng()
    x = random.standard_normal([20, ROWS, 784], dtype=np.float32)
    y = random.integers(0, 10, [20, ROWS])
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().prefetch(4)


def loss_of(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    logits = model(x, training=True)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, logits)


def steps_a_second(step: Callable[[], None]) -> float:
    for _ in range(WARM_UP):
        step()
    gc.collect()  # so that no full collection falls into what is measured by chance
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    return STEPS / (time.perf_counter() - begin)


def by_fit(strategy: tf.distribute.Strategy, batches: int = 1) -> float:
    """Trains some steps to warm up, and an epoch to measure.

    Args:
      strategy: what trains; TensorFlow's default strategy is none.
      batches: how many batches a step takes together.
    """
    taken = 0.0

    class Deadline(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
            nonlocal taken
            gc.collect()
            taken = -time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
            nonlocal taken
            taken += time.perf_counter()

    with strategy.scope():
        model = make_model()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dataset = data().rebatch(ROWS * batches).prefetch(4) if batches > 1 else data()
    if tf.distribute.get_strategy() is not strategy:
        own = dataset
        dataset = strategy.distribute_datasets_from_function(lambda _: own)
    model.fit(dataset, steps_per_epoch=WARM_UP, verbose=0)
    model.fit(dataset, steps_per_epoch=STEPS, callbacks=[Deadline()], verbose=0)
    if tf.distribute.get_strategy() is not strategy:
        strategies.verify_equal(strategy, model.variables)
    return STEPS / taken


def by_loop(strategy: tf.distribute.Strategy) -> float:
    with strategy.scope():
        model = make_model()
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    batches = iter(strategy.distribute_datasets_from_function(lambda _: data()))

    def in_replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step() -> tf.Tensor:
        return strategy.run(in_replica, args=next(batches))

    found = steps_a_second(lambda: float(step()))
    if isinstance(strategy, strategies.MultiWorkerMirroredStrategy):  # stock's has no such check
        strategies.verify_equal(strategy, model.variables)
    return found


def by_horovod() -> float:
    model, optimizer = make_model(), keras.optimizers.Adam()
    hvd, variables = start(model, optimizer)
    batches = iter(data())

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(model, *next(batches))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    found = steps_a_second(lambda: float(step()))
    for variable in variables:
        of_all = hvd.allgather(tf.reshape(variable, [1, -1])).numpy()
        if not (of_all == of_all[0]).all():
            raise RuntimeError(f"Horovod's workers differ in {variable.name}.")
    return found


def measure(name: str, batches: int = 1) -> float:
    if name == "horovod":
        return by_horovod()
    if name == "stock":
        ring = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        return by_loop(tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring))
    if name == "alone":
        return by_fit(strategies.MirroredStrategy(["/device:CPU:0"]))
    communication = "horovod" if name == "fit_horovod" else "auto"
    options = strategies.ReductionOptions(mode="reduce") if name == "fit_reduce" else None
    strategy = strategies.MultiWorkerMirroredStrategy(communication=communication, options=options)
    return by_loop(strategy) if name == "loop" else by_fit(strategy, batches)


def main() -> None:
    (batches,) = [int(each) for each in sys.argv[2:] if each.isdigit()] or [1]
    if sys.argv[1] == "keras":
        samples = by_fit(tf.distribute.get_strategy(), batches) * ROWS * batches
        print(f"RESULT {json.dumps({'samples/s': samples})}", flush=True)
        return
    config = json.loads(os.environ["TF_CONFIG"])
    if sys.argv[1] == "alone":
        del os.environ["TF_CONFIG"]
    steps = measure(sys.argv[1], batches)
    if config["task"]["index"] == 0:
        samples = steps * ROWS * batches * len(config["cluster"]["worker"])
        print(f"RESULT {json.dumps({'samples/s': samples})}", flush=True)


if __name__ == "__main__":
    main()
