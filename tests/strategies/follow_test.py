"""The command that follows a training."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies import follow

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported")
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    strategies.export(model, directory / "served")
    for _ in range(2):
        model.fit(np.ones([2, 2]), np.ones([2, 1]), verbose=0)
        strategies.export_delta(model, directory / "deltas")
    return directory, model(np.ones([2, 2])).numpy()


def test_it_applies_what_is_there_and_writes_what_is_served(exported, tmp_path, capsys):
    directory, expected = exported
    versions = tmp_path / "versions"
    arguments = [str(directory / "served"), str(directory / "deltas"), "--once"]
    assert follow.main([*arguments, "--write", str(versions)]) == 0
    printed = capsys.readouterr().out
    assert printed == f"applied 000001\napplied 000002\nwrote {versions / '2'}\n"
    served = tf.saved_model.load(str(versions / "2"))
    np.testing.assert_array_equal(served.serve(np.ones([2, 2], np.float32)), expected)


def test_it_waits_for_more(exported, tmp_path, capsys, monkeypatch):
    directory, _ = exported
    deltas = tmp_path / "deltas"
    deltas.mkdir()
    turns = []

    def sleep(seconds):
        assert seconds == 1.0
        turns.append(seconds)
        if len(turns) == 3:
            raise KeyboardInterrupt
        shutil.copytree(directory / "deltas" / f"00000{len(turns)}", deltas / f"00000{len(turns)}")

    monkeypatch.setattr(follow.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        follow.main([str(directory / "served"), str(deltas)])
    assert capsys.readouterr().out == "applied 000001\napplied 000002\n"


def test_it_ends_at_a_delta_that_it_cannot_apply(exported, tmp_path, capsys):
    directory, _ = exported
    shutil.copytree(directory / "deltas" / "000002", tmp_path / "000002")
    assert follow.main([str(directory / "served"), str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("strategies.follow: Deltas must be applied one after another."), error


def test_there_must_be_a_saved_model(tmp_path, capsys):
    assert follow.main([str(tmp_path / "none"), str(tmp_path)]) == 1
    assert "none" in capsys.readouterr().err
