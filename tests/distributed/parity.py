"""N workers at B rows each follow one process at N * B rows.

parity.py keras|tf_keras [replicas a worker] [fields of ReductionOptions as JSON]
"""

import importlib
import json
import sys

import strategies
from tests.support import hosts
from tests.support.checks import run_checks
from tests.support.parity import Parity

hosts.pretend()
keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
options = strategies.ReductionOptions(**json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"))
strategy = strategies.from_tf_config(num_replicas=replicas, options=options)
parity = Parity(keras, strategy, steps=20)


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.01)


def check_a_dense_model_with_sgd():
    parity.of_a_dense_model(sgd)


def check_a_dense_model_with_adam():
    parity.of_a_dense_model(adam)


def check_a_wide_model_with_sgd():
    parity.of_a_wide_model(sgd)


def check_an_embedding_with_sgd():
    parity.of_an_embedding(sgd)


def check_an_embedding_with_adam():
    parity.of_an_embedding(adam)


if __name__ == "__main__":
    run_checks(globals())
