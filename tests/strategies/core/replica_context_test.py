"""What replicas of one process share: the checks stand in tests/support/steps.py."""

import keras
import pytest
import tf_keras

import strategies
from tests.support import steps

REPLICAS = ["CPU:0", "CPU:1"]


@pytest.mark.in_turn
@pytest.mark.parametrize("in_fit", [True, False], ids=["fit", "loop"])
@pytest.mark.parametrize("is_synchronized", [False, True], ids=["alone", "synchronized"])
@pytest.mark.parametrize("api", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize(
    "kind",
    [strategies.MirroredStrategy, strategies.CentralStorageStrategy],
    ids=["mirrored", "central"],
)
def test_replicas_keep_what_layers_keep_of_their_own_call(kind, api, is_synchronized, in_fit):
    steps.check_what_layers_keep_of_a_call(api, kind(REPLICAS), is_synchronized, in_fit)


@pytest.mark.in_turn
@pytest.mark.parametrize("api", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_replicas_keep_the_losses_of_a_model_that_they_called_before(api):
    steps.check_losses_of_a_model_called_before(api, strategies.MirroredStrategy(REPLICAS))
