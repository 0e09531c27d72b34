"""Trains the click model over Horovod, with Keras's own embedding, in a custom loop.

ctr_horovod.py sgd|adam
"""

from __future__ import annotations

import json
import sys
import time

import keras
import tensorflow as tf
from ctr import Lookup, data, make_model, optimizer
from ctr_data import ROWS, STEPS, WARM_UP, check_loss, collect_garbage
from horovod_start import start


def main() -> None:
    model, update = make_model(Lookup), optimizer(sys.argv[1])
    hvd, variables = start(model, update)
    batches = iter(data())

    @tf.function
    def step() -> tf.Tensor:
        x, y = next(batches)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, model(x, training=True)))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        update.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for count in (WARM_UP, STEPS):
        collect_garbage()
        begin = time.perf_counter()
        for _ in range(count):
            loss = float(step())
    samples = STEPS * ROWS * hvd.size() / (time.perf_counter() - begin)
    check_loss(loss)
    if hvd.rank() == 0:
        print(f"RESULT {json.dumps({'samples/s': samples})}", flush=True)


if __name__ == "__main__":
    main()
