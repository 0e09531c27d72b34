"""What threads that watch say of the call of Keras that the main thread is in."""

import threading

import keras
import numpy as np
import pytest
import tf_keras

import strategies
from strategies.diagnostics.progress import where

pytestmark = pytest.mark.training


@pytest.mark.in_turn
@pytest.mark.parametrize("api", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_the_step_the_call_and_the_line_are_known_from_another_thread(api):
    main, said = threading.get_ident(), []

    class Look(api.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.look()

        def on_test_end(self, logs=None):
            self.look()

        def look(self):
            thread = threading.Thread(target=lambda: said.append(where(main)))
            thread.start()
            thread.join()

    strategy = strategies.MirroredStrategy(["/device:CPU:0"])
    with strategy.scope():
        model = api.Sequential([api.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones([8, 3], "float32"), np.ones([8, 1], "float32")
    model.fit(x, y, batch_size=2, epochs=2, verbose=0, callbacks=[Look()])
    model.evaluate(x, y, batch_size=4, verbose=0, callbacks=[Look()])
    first, second, last = said
    assert first.startswith("after step 4, in fit(epochs=2, ") and "examples=8" in first
    assert second.startswith("after step 8, in fit(epochs=2, ")
    assert last.startswith("after step 8, in evaluate(")
    assert all("calls_test.py, line " in text for text in said)
    said.clear()
    Look().look()
    assert said[0].startswith("in calls_test.py, line ")
