"""Trains examples/ctr_dnn.py, and prints the AUC of the first worker's weights on all test rows.

click_model.py FLAG ..., those of the example
"""

import sys
from pathlib import Path

import keras
import numpy as np
from absl import app
from sklearn.metrics import roc_auc_score

import strategies

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
import ctr_dnn


def main(_):
    flags = ctr_dnn.FLAGS
    keras.utils.set_random_seed(flags.seed)
    strategy = strategies.from_tf_config(**({"mode": flags.mode} if flags.mode else {}))
    weights = ctr_dnn.train(strategy).get_weights()
    strategies.barrier(strategy)
    model = ctr_dnn.make_model()
    model.set_weights(weights)
    dataset = ctr_dnn.read(flags.test, strategies.MirroredStrategy(num_replicas=1))
    labels = np.concatenate([label for _, label in dataset.as_numpy_iterator()])
    auc = roc_auc_score(labels[:, 0], model.predict(dataset, verbose=0)[:, 0])
    strategy.print(f"AUC on all rows: {auc:.5f}")


app.run(main)
