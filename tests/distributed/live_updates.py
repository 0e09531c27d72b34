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
        trained = Trained(api, shares=not has_servers)
    trained.fit(batch=8 * strategy.num_replicas_in_sync)
    strategies.export(trained.model, "served")
    return trained


@functools.cache
def follower():
    return Follower("served", "deltas")


def check_what_is_served_is_what_the_trained_model_predicts():
    one = trained()
    for number in range(1, 4):
        one.fit(batch=8 * strategy.num_replicas_in_sync)
        one.layer.evict()
        folder = strategies.export_delta(one.model, "deltas")
        assert Path(folder).name == f"{number:06d}", folder
        assert follower().update() == [number]
        expected = one.predictions()
        np.testing.assert_array_equal(one.served_predictions(follower().model), expected)
        strategies.barrier(strategy)  # others may be reading the delta


def check_it_serves_what_a_new_export_serves():
    one = trained()
    with strategies.writing("exported", strategy) as path:
        one.model.export(path)
    again = tf.saved_model.load("exported")
    np.testing.assert_array_equal(
        one.served_predictions(follower().model), one.served_predictions(again)
    )
    strategies.barrier(strategy)


def check_a_damaged_delta_is_refused():
    one = trained()
    one.fit(batch=8 * strategy.num_replicas_in_sync)
    folder = Path(strategies.export_delta(one.model, "deltas"))
    before = one.served_predictions(follower().model)
    file = sorted(folder.glob(f"*-worker{workers.size - 1}-*"))[0]
    data = file.read_bytes()
    strategies.barrier(strategy)
    if workers.rank == 0:
        file.write_bytes(data[:-1])
    strategies.barrier(strategy)
    with raises(ValueError, "must be complete and unchanged"):
        follower().update()
    np.testing.assert_array_equal(one.served_predictions(follower().model), before)
    strategies.barrier(strategy)
    if workers.rank == 0:
        file.write_bytes(data)
    strategies.barrier(strategy)
    assert follower().update() == [4]
    np.testing.assert_array_equal(one.served_predictions(follower().model), one.predictions())


def check_deltas_of_another_export_are_not_written():
    strategies.export(trained().model, "served")
    with raises((ValueError, RuntimeError), "deltas of one export"):
        strategies.export_delta(trained().model, "deltas")


if __name__ == "__main__":
    run_checks(globals())
