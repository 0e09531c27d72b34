"""Times steps whose rows are far away, and are asked for before the step or not.

    prefetch_step.py plain|prefetched [MILLISECONDS] [--short]

With a parameter server in TF_CONFIG, every byte between this worker and the server takes so many
milliseconds, each way. Without, the workers train in step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

way = sys.argv[1]
warm, counted = (2, 4) if "--short" in sys.argv else (20, 100)
EXAMPLES, FEATURES, WIDTH = 1024, 26, 16

config = json.loads(os.environ["TF_CONFIG"])
mode = {"mode": "half_async"} if "ps" in config["cluster"] else {}
if mode:
    (address,) = config["cluster"]["ps"]
    far = subprocess.Popen(
        [sys.executable, Path(__file__).parent / "far.py", address, sys.argv[2]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    config["cluster"]["ps"] = [f"127.0.0.1:{int(far.stdout.readline())}"]
    os.environ["TF_CONFIG"] = json.dumps(config)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import strategies  # noqa: E402

strategy = strategies.from_tf_config(**mode)
random = np.random.default_rng(0)
ids = random.zipf(1.2, [warm + counted, EXAMPLES, FEATURES]).astype(np.int64)
labels = random.integers(0, 2, [warm + counted, EXAMPLES, 1]).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((ids, labels))
with strategy.scope():
    layer = strategies.DistributedEmbedding(WIDTH)
    model = keras.Sequential([keras.Input([FEATURES], dtype="int64"), layer])
    model.add(keras.layers.Flatten())
    for units in (512, 256, 1):
        model.add(keras.layers.Dense(units, "relu" if units > 1 else None))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adagrad(0.05), loss)
if way == "prefetched":
    dataset = strategies.prefetch_rows(dataset, layer, lambda ids, labels: ids)

ends = []
end = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
)
model.fit(dataset, verbose=0, callbacks=[end])
milliseconds = 1000 * np.median(np.diff(ends[warm - 1 :]))
if strategies.worker_rank(strategy) == 0:
    print(f"RESULT {json.dumps({'ms a step': milliseconds})}", flush=True)
