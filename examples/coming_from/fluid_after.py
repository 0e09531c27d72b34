"""What fluid_before.py does, with a strategy.

    $ tf-config run --workers 2 --ps 1 examples/coming_from/fluid_after.py
    [worker 0] accuracy: 1.000

Trainers are workers, and `--ps 1` is the parameter server: no roles, endpoints or transpiler are
left in the script. `sync_mode=False` is `mode="async"`; `is_distributed=True` is
`DistributedEmbedding`, which needs no `DICT_SIZE`. Without `--ps` the same script trains in step,
with the rows on the workers, and on one worker.
"""

import keras
import numpy as np

import strategies

WIDTH, BATCH_SIZE = 16, 128  # of both workers together

random = np.random.default_rng(1)
clicks = random.integers(2, size=[4000, 1])
ids = np.where(clicks, random.integers(0, 300, [4000, 3]), random.integers(300, 1000, [4000, 3]))

strategy = strategies.from_tf_config(mode="async")
with strategy.scope():
    inputs = keras.Input([3], dtype="int64")
    rows = strategies.DistributedEmbedding(WIDTH, combiner="sum")(inputs)
    hidden = keras.layers.Dense(32, "relu")(rows)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adagrad(0.1), loss, metrics=["accuracy"])
model.fit(ids, clicks, batch_size=BATCH_SIZE, epochs=3)

_, accuracy = model.evaluate(ids, clicks, verbose=0)
strategy.print(f"accuracy: {accuracy:.3f}")
with strategies.writing("fluid_model", strategy) as path:
    model.export(path, verbose=False)
