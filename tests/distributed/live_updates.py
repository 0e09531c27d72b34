"""A served model that follows a training on several replicas, workers and servers.

live_updates.py keras|tf_keras MODE REPLICAS

All workers see the directory in which it is run, and it is empty.
"""

import functools
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from strategies.follow import Follower
from tests.support.assertions import raises
from tests.support.checks import run_checks
from tests.support.live import Trained

api, mode, replicas = sys.argv[1], sys.argv[2], int(sys.argv[3])
strategy = strategies.from_tf_config(mode=mode, num_replicas=replicas)
workers = collectives_of(strategy)
has_servers = hasattr(strategy.extended, "servers")


@functools.cache
def trained():
    with strategy.scope():
        trained = Trained(api, shares=not has_servers, evicts_in_steps=mode != "geo")
    fit(trained)
    return trained


def fit(trained):
    trained.fit(batch=8 * strategy.num_replicas_in_sync)
    trained.layer.evict()


def followed(name):
    """Returns the trained model, a follower of it, and the directory of its deltas."""
    strategies.export(trained().model, f"{name}/served")
    return trained(), Follower(f"{name}/served", f"{name}/deltas"), f"{name}/deltas"


def compare(one, follower):
    """Compares what is served with what the trained model predicts, to the bit."""
    if mode == "geo":
        # Each worker predicts with its own weights, and those of the first one are exported.
        with strategies.writing("exported", strategy) as path:
            one.model.export(path)
        expected = one.served_predictions(tf.saved_model.load("exported"), 1)
    else:
        # One example on each replica.
        expected = one.predictions(strategy.num_replicas_in_sync)
    np.testing.assert_array_equal(one.served_predictions(follower.model, 1), expected)
    strategies.barrier(strategy)  # none trains while another one predicts


def check_what_is_served_is_what_the_trained_model_predicts():
    one, follower, deltas = followed("predicted")
    compare(one, follower)
    for number in range(1, 4):
        before = one.served_predictions(follower.model)
        fit(one)
        folder = strategies.export_delta(one.model, deltas)
        assert Path(folder).name == f"{number:06d}", folder
        assert follower.update() == [number]
        assert not np.array_equal(one.served_predictions(follower.model), before)
        compare(one, follower)


def check_a_damaged_delta_is_refused():
    one, follower, deltas = followed("damaged")
    before = one.served_predictions(follower.model)
    fit(one)
    folder = Path(strategies.export_delta(one.model, deltas))
    file = sorted(folder.glob("*-ids.npy"))[-1]
    data = file.read_bytes()
    strategies.barrier(strategy)
    if workers.rank == 0:
        file.write_bytes(data[:-1])
    strategies.barrier(strategy)
    with raises(ValueError, "must be complete and unchanged"):
        follower.update()
    assert follower.number == 0
    np.testing.assert_array_equal(one.served_predictions(follower.model), before)
    strategies.barrier(strategy)
    if workers.rank == 0:
        file.write_bytes(data)
    strategies.barrier(strategy)
    assert follower.update() == [1]
    compare(one, follower)


def check_a_directory_has_the_deltas_of_one_export():
    one, _, deltas = followed("one")
    strategies.export_delta(one.model, deltas)
    strategies.export(one.model, "one/served")
    with raises((ValueError, RuntimeError), "deltas of one export"):
        strategies.export_delta(one.model, deltas)


if __name__ == "__main__":
    run_checks(globals())
