"""Looking at the stack."""

import gc
import weakref

import pytest

from strategies.compat import keras as _keras
from strategies.compat import keras_losses
from strategies.compat.call_stack import innermost_self


class Data:
    """What a caller has."""


@pytest.mark.parametrize(
    "look",
    [
        lambda: innermost_self(lambda found: False),
        lambda: innermost_self(lambda found: found is not None),
        _keras.running_method,
        _keras.running_call,
        _keras.gradient_in_update,
        _keras.is_writing_h5,
        keras_losses.is_dividing_loss,
        _keras.restart_threads,
        _keras.running_fit,
    ],
)
def test_what_callers_have_is_freed_as_they_return(look):
    def fit(epoch_iterator=None, initial_epoch=0):
        data = Data()
        look()
        return weakref.ref(data)

    gc.disable()
    try:
        assert fit()() is None
    finally:
        gc.enable()
