"""Writes the files that tests/strategies/earlier_files_test.py loads.

Run it with the package of the version whose files they are to be:

    PYTHONPATH=checkout-of-that-version python write.py keras|tf_keras DIRECTORY
"""

import importlib
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies

api, directory = sys.argv[1], Path(sys.argv[2])
directory.mkdir(parents=True)
keras = importlib.import_module(api)
layers = importlib.import_module(f"strategies.embedding.{api}_layer")
keras.utils.set_random_seed(3)
ids = np.array([[5], [-7], [2**62], [5], [11], [-7]], np.int64)
labels = np.arange(6, dtype="float32")[:, None]
dataset = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(2)

inputs = keras.Input([1], dtype="int64", name="ids")
layer = layers.DistributedEmbedding(
    2, name="embedding", admission=strategies.Admission(1), input_dim=100
)
outputs = keras.layers.Dense(1, name="dense")(keras.layers.Flatten()(layer(inputs)))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.1), "mse")


def keep(name):
    """Writes what a loaded model is compared with."""
    found = layer.rows()
    predictions = model.predict(ids, verbose=0)
    np.savez(directory / name, ids=found[0], rows=found[1], predictions=predictions)


model.fit(dataset, epochs=2, verbose=0)
model.save(directory / "model.keras")
layer.save_rows(str(directory / "rows"))
layer.export_rows(str(directory / "plain"))
tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(directory / "checkpoint"))
if api == "keras":
    model.export(str(directory / "saved_model"), verbose=False)
    model.save_weights(directory / "model.weights.h5")
keep("expected.npz")
model.fit(dataset, epochs=1, verbose=0)
keep("later.npz")
