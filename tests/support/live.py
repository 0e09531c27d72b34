"""A model that is trained, exported and followed, and what it serves in a session."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import tensorflow as tf

from strategies import Eviction, FeatureConfig, TableConfig
from tests.support.embeddings import embedding_of

TEST_IDS = 240
EXAMPLES = 16


class Trained:
    """A model with tables that remove rows, each in another way, and with other weights.

    Args:
      api: "keras" or "tf_keras".
      shares: whether there is a table in which ids share a row, which servers do not have.
      evicts_in_steps: whether some tables remove rows in steps, which workers that train rows
        themselves cannot do.
    """

    def __init__(self, api: str, shares: bool = True, evicts_in_steps: bool = True):
        self._keras = keras = importlib.import_module(api)
        bounded: dict[str, Any] = {"input_dim": 60, "overflow": "evict"} if evicts_in_steps else {}
        every = 2 if evicts_in_steps else None
        tables = {
            "user": TableConfig("users", 3, embeddings_initializer="normal",
                                eviction=Eviction(age=4)),
            "item": TableConfig("items", 2, **bounded),
            "page": TableConfig("pages", 3, eviction=Eviction(age=3, every=every)),
            "word": TableConfig("words", 3, 24, overflow="share"),
        }  # fmt: skip
        self._names = [name for name in tables if shares or name != "word"]
        features = {name: FeatureConfig(tables[name], "mean") for name in self._names}
        inputs = {name: keras.Input([2], dtype="int64", name=name) for name in self._names}
        self.layer = embedding_of(api)(features=features, name="tables")
        joined = keras.layers.Concatenate()(list(self.layer(inputs).values()))
        hidden = keras.layers.Dense(4, "relu")(keras.layers.BatchNormalization()(joined))
        self.model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        self.model.compile(keras.optimizers.Adagrad(0.1), "mse")
        self._random = np.random.default_rng(1)
        self._round = 0
        self.test = self.inputs(self._random.integers(0, TEST_IDS, [EXAMPLES, 2]))

    def inputs(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        return dict.fromkeys(self._names, ids)

    def fit(self, steps: int = 4, batch: int = 8) -> None:
        """Trains on ids that drift, so that there are new ones and old ones."""
        ids = self._random.integers(20 * self._round, 20 * self._round + 60, [steps * batch, 2])
        self._round += 1
        y = self._random.normal(size=[steps * batch, 1])
        self.model.fit(self.inputs(ids), y, batch_size=batch, shuffle=False, verbose=0)

    def predictions(self, batch: int = EXAMPLES) -> np.ndarray:
        return self.model.predict(self.test, batch_size=batch, verbose=0)

    def served_predictions(self, served: object, batch: int = EXAMPLES) -> np.ndarray:
        """Returns what a SavedModel that `tf.saved_model.load` has loaded serves.

        A product of matrices has other last bits for another number of examples, so compare what is
        served for as many at once as each replica has.
        """
        # tf_keras's `export` takes a list, in the order of the names.
        is_list = self._keras.__name__ == "tf_keras"
        results = []
        for start in range(0, EXAMPLES, batch):
            inputs = {name: tf.constant(x[start : start + batch]) for name, x in self.test.items()}
            results.append(served.serve(tf.nest.flatten(inputs) if is_list else inputs).numpy())
        return np.concatenate(results)


class ServedSession:
    """A SavedModel in a session, as TensorFlow Serving has it.

    Args:
      path: the SavedModel's.
    """

    def __init__(self, path: object):
        with tf.Graph().as_default():
            self._session = tf.compat.v1.Session()
            graph = tf.compat.v1.saved_model.load(self._session, ["serve"], str(path))
        self._signatures = graph.signature_def

    def run(self, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        signature = self._signatures[name]
        feed = {signature.inputs[key].name: each for key, each in inputs.items()}
        fetches = {key: each.name for key, each in signature.outputs.items()}
        return self._session.run(fetches, feed)

    def predictions(self, test: dict[str, np.ndarray]) -> np.ndarray:
        """Returns what is served for inputs that are named as those of the model."""
        names = self._signatures["serving_default"].inputs
        inputs = {name: next(test[key] for key in test if key in name) for name in names}
        (output,) = self.run("serving_default", inputs).values()
        return output
