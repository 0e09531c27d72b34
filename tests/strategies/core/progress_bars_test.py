"""Keras's progress bars where several workers share one log."""

import atexit
import importlib
import io
import sys

import numpy as np
import pytest

from strategies.core.progress_bars import print_whole_bars

pytestmark = pytest.mark.training


@pytest.fixture(params=["keras", "tf_keras"])
def trained(request, monkeypatch):
    """Trains two epochs; returns what is printed where `tf-config exec` has found no terminal."""
    keras = importlib.import_module(request.param)

    def train(is_first):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        monkeypatch.setattr(atexit, "register", lambda function: None)
        print_whole_bars(is_first)
        print_whole_bars(is_first)  # as for the script's second strategy
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        print("begins")
        model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=2, epochs=2)
        return stream.getvalue()

    return train


@pytest.mark.in_turn
def test_the_first_worker_prints_each_epoch_once_and_the_others_none(trained, monkeypatch):
    monkeypatch.setenv("KERAS_STRATEGIES_BARS", "whole")
    begins, above, first, *rest = trained(is_first=True).splitlines()
    assert (begins, above) == ("begins", "Epoch 1/2")
    assert first.startswith("4/4 ") and "loss" in first and first.isprintable()
    assert len(rest) == 2
    assert trained(is_first=False) == "begins\n"


def test_elsewhere_bars_are_drawn_as_keras_draws_them(trained, monkeypatch):
    monkeypatch.delenv("KERAS_STRATEGIES_BARS", raising=False)
    assert "\b" in trained(is_first=False)
