"""CentralStorageStrategy; what is checked stands in tests/scripts."""

import pytest


@pytest.mark.parametrize("api", ["keras", "tf_keras"])
def test_replicas_do_what_one_process_does(train, api):
    train("central.py", api, workers=1)
