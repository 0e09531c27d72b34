"""Which devices replicas may be on."""

import pytest

import strategies

MIRRORED, CENTRAL = strategies.MirroredStrategy, strategies.CentralStorageStrategy


@pytest.mark.parametrize("strategy", [MIRRORED, CENTRAL])
@pytest.mark.parametrize(
    "devices", [["CPU:0", "/device:CPU:0"], ["GPU:7"], ["CPU:0", "CPU:9"], ["processor"], []]
)
def test_devices_that_replicas_cannot_be_on(strategy, devices):
    with pytest.raises(ValueError, match="Each replica must have its own device") as raised:
        strategy(devices)
    assert str(devices) in str(raised.value)


def test_a_device_that_cannot_hold_variables():
    with pytest.raises(ValueError, match="Each replica must have its own device"):
        CENTRAL(["CPU:0"], "GPU:7")


@pytest.mark.parametrize("names", [["CPU:0", "CPU:1"], ["/cpu:1"], ["/job:localhost/device:CPU:0"]])
def test_devices_by_any_of_their_names(names):
    for strategy in MIRRORED(names), CENTRAL(names, names[-1]):
        assert strategy.num_replicas_in_sync == len(names)
        for device, name in zip(strategy.extended.worker_devices, names, strict=True):
            assert device.endswith(f"/task:0/device:CPU:{name[-1]}")


@pytest.mark.parametrize("strategy", [MIRRORED, CENTRAL])
def test_there_is_a_replica_or_more(strategy):
    with pytest.raises(ValueError, match="num_replicas must be at least 1. Received: 0"):
        strategy(num_replicas=0)
