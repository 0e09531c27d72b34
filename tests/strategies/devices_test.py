"""Which devices replicas may have."""

import pytest

import strategies


@pytest.mark.parametrize(
    "strategy", [strategies.MirroredStrategy, strategies.CentralStorageStrategy]
)
def test_a_device_that_two_replicas_share_is_refused(strategy):
    with pytest.raises(ValueError, match=r"Each replica has a device of its own\. Received: .*0, "):
        strategy(["CPU:0", "/device:CPU:0"])
