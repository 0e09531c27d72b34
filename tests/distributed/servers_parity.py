"""mode="sync": N workers at B rows each follow one process at N * B rows.

servers_parity.py keras|tf_keras [options of ParameterServerStrategy as JSON]
"""

import importlib
import json
import sys

import numpy as np

import strategies
from tests.support.checks import run_checks
from tests.support.parity import CLASSES, Parity

keras = importlib.import_module(sys.argv[1])
options = json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")
strategy = strategies.from_tf_config(mode="sync", **{"min_slice_size": 32, **options})
assert isinstance(strategy, strategies.ParameterServerStrategy)
optimizers = keras.optimizers
parity = Parity(keras, strategy, steps=12)


def trains_on(model, x):
    """Trains fewer rows than the replicas can share evenly, after the others."""
    y = np.random.default_rng(1).integers(0, CLASSES, size=[len(x)])
    model.fit(x, y, verbose=0)
    strategies.verify_equal(strategy, model.variables)
    is_sliced = options.get("min_slice_size", 32) and len(strategy.extended.servers) > 1
    assert ("rows 0-" in strategy.placement()) == bool(is_sliced), strategy.placement()


def a_dense_model_follows(make_optimizer):
    model = parity.of_a_dense_model(make_optimizer, evaluates=True, rtol=1e-4)
    trains_on(model, np.ones([strategy.num_replicas_in_sync + 1, 12], np.float32))


def an_embedding_follows(make_optimizer):
    model = parity.of_an_embedding(make_optimizer, evaluates=True, rtol=1e-4)
    trains_on(model, np.ones([strategy.num_replicas_in_sync + 1, 6], np.int64))


def check_a_dense_model_with_momentum():
    a_dense_model_follows(lambda: optimizers.SGD(0.1, momentum=0.9))


def check_a_dense_model_with_adagrad():
    a_dense_model_follows(lambda: optimizers.Adagrad(0.1))


def check_a_dense_model_with_a_schedule_and_clipping():
    decay = {"initial_learning_rate": 0.05, "decay_steps": 4, "decay_rate": 0.5}
    schedule = optimizers.schedules.ExponentialDecay
    a_dense_model_follows(lambda: optimizers.Adam(schedule(**decay), global_clipnorm=5.0))


def check_a_dense_model_with_adamw():
    a_dense_model_follows(lambda: optimizers.AdamW(0.01, weight_decay=0.1))


def check_an_embedding_with_sgd():
    an_embedding_follows(lambda: optimizers.SGD(0.1))


def check_an_embedding_with_adam():
    an_embedding_follows(lambda: optimizers.Adam(0.01))


if __name__ == "__main__":
    run_checks(globals())
