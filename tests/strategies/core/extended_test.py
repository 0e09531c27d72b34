"""What tf.distribute promises; the checks stand in tests/distributed/replica_context.py."""

import pytest

from tests.support.check_jobs import checks_of

CHECKS = pytest.mark.parametrize(
    "check", checks_of("replica_context.py", slow=["an_optimizers_state_is_updated_once_a_step"])
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
