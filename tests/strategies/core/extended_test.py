"""What tf.distribute promises; the checks stand in tests/distributed/replica_context.py."""

import pytest

from tests.support.check_jobs import checks_of

CHECKS = pytest.mark.parametrize(
    "check",
    checks_of(
        "replica_context.py",
        slow=[
            "the_extendeds_sum_is_over_all_replicas",
            "iterators_in_a_function",
            "batches_are_dealt_out_to_devices",
            "batches_stay_on_the_host_where_they_are_not_fetched",
            "a_variable_without_aggregation_is_written_once_a_step",
            "an_optimizers_state_is_updated_once_a_step",
        ],
    ),
)


@CHECKS
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in ("mirrored", "central_storage")]
)
def test_replicas_of_one_process(run_check, check, kind):
    run_check(check, kind, workers=1)


@CHECKS
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers(run_check, check, replicas):
    run_check(check, "workers", replicas)
