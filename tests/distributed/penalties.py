"""The L2 penalty of a table whose rows are on several workers or on servers.

penalties.py workers|MODE [REPLICAS]
"""

import sys

import keras

import strategies
from tests.support import penalties
from tests.support.checks import run_checks

kind, replicas = sys.argv[1], int(*sys.argv[2:] or [1])
mode = {} if kind == "workers" else {"mode": kind}
if kind == "geo":
    mode["geo_rows"] = "servers"  # for the other way, see servers_geo_rows.py
strategy = strategies.from_tf_config(num_replicas=replicas, **mode)
rank = strategies.worker_rank(strategy)
in_step = kind in ("workers", "sync")


def check_each_row_is_penalized_once_in_a_step():
    penalties.check_each_row_once(keras, strategy, rank, in_step)


def check_if_a_step_has_all_rows_it_is_that_of_a_regularizer():
    if in_step:
        penalties.check_like_a_regularizer(keras, strategy)


def check_a_replicated_table_is_penalized_like_a_sharded_one():
    if kind == "workers":
        options = {"placement": "replicated"}
        penalties.check_each_row_once(keras, strategy, rank, True, input_dim=100, **options)
        penalties.check_like_a_regularizer(keras, strategy, **options)


if __name__ == "__main__":
    run_checks(globals())
