"""What tf.distribute promises; what is checked stands in tests/scripts/replica_context.py."""

import pytest


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_replicas_of_one_process(train, kind):
    train("replica_context.py", kind, workers=1, timeout=300)


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers(train, replicas):
    train("replica_context.py", "workers", replicas, timeout=300)
