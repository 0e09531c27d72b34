"""What a follower applies, and what it refuses with nothing applied.

KERAS_STRATEGIES_LIVE_KILLS=50 has the tests that kill processes kill each so often.
"""

import contextlib
import os
import random
import shutil
import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies import DistributedEmbedding
from strategies.follow import Follower
from strategies.live import delta_folder
from tests.support.check_jobs import PROGRAMS

KILLS = int(os.environ.get("KERAS_STRATEGIES_LIVE_KILLS", "3"))
pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A directory with a SavedModel, four deltas, and the model's outputs after each of them."""
    directory = tmp_path_factory.mktemp("exported")
    layer = DistributedEmbedding(2, name="table")
    inputs = keras.Input([1], dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    strategies.export(model, directory / "served")
    outputs = [model(IDS).numpy()]
    for number in range(1, 5):
        model.fit(IDS[:number], np.ones([number, 1]), verbose=0)
        strategies.export_delta(model, directory / "deltas")
        outputs.append(model(IDS).numpy())
    return directory, outputs


IDS = np.arange(6).reshape([6, 1])


@pytest.fixture
def served(exported, tmp_path):
    """A follower of a copy of the deltas, the directory of the copy, and a function that checks."""
    directory, outputs = exported
    shutil.copytree(directory / "deltas", tmp_path / "deltas")
    follower = Follower(directory / "served", tmp_path / "deltas")

    def check(number):
        assert follower.number == number
        np.testing.assert_array_equal(follower.model.serve(IDS), outputs[number])

    check(0)
    return follower, tmp_path / "deltas", check


def test_it_applies_what_is_new(served):
    follower, deltas, check = served
    hidden = deltas.with_name("hidden")
    hidden.mkdir()
    for number in (3, 4):
        shutil.move(deltas / f"00000{number}", hidden)
    assert follower.update() == [1, 2]
    check(2)
    assert follower.update() == []
    for number in (3, 4):
        shutil.move(hidden / f"00000{number}", deltas)
        assert follower.update() == [number]
        check(number)
    assert follower.update() == []


def test_a_gap_is_refused(served):
    follower, deltas, check = served
    shutil.rmtree(deltas / "000002")
    with pytest.raises(ValueError, match="'000003' after number 1, without '000002'"):
        follower.update()
    check(1)


def test_a_repeat_is_refused(served):
    follower, deltas, check = served
    shutil.rmtree(deltas / "000003")
    shutil.copytree(deltas / "000002", deltas / "000003")
    with pytest.raises(ValueError, match="'000003' must contain the delta of this number"):
        follower.update()
    check(2)


def test_a_damaged_delta_is_refused(served):
    follower, deltas, check = served
    file = deltas / "000002" / "variables.npz"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"x")
    for _ in range(2):
        with pytest.raises(ValueError, match="must be complete and unchanged"):
            follower.update()
        check(1)
    file.write_bytes(data)
    assert follower.update() == [2, 3, 4]
    check(4)


def test_the_signature_itself_refuses_what_is_not_next(served):
    """So do a session and TensorFlow Serving, which know no follower."""
    follower, deltas, check = served
    follower.update()
    delta = delta_folder.newest(deltas)
    inputs = delta_folder.read(deltas / "000004", delta)
    for changes in ({}, {"number": np.int64(6)}, {"number": np.int64(5), "chain": np.int64(1)}):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be applied in order"):
            follower.model.signatures["update"](
                **{name: tf.constant(each) for name, each in {**inputs, **changes}.items()}
            )
        check(4)


def test_a_follower_that_starts_again_starts_from_the_first_delta(served, exported):
    follower, deltas, check = served
    follower.update()
    again = Follower(exported[0] / "served", deltas)
    assert again.number == 0
    assert again.update() == [1, 2, 3, 4]
    np.testing.assert_array_equal(again.model.serve(IDS), exported[1][4])


def test_what_it_writes_is_served_and_follows(served, exported, tmp_path):
    follower, deltas, check = served
    later = deltas.with_name("000004")
    shutil.move(deltas / "000004", later)
    follower.update()
    path = follower.save(tmp_path / "versions")
    assert Path(path) == tmp_path / "versions" / "3"
    assert follower.save(tmp_path / "versions") == path
    for number in (1, 2):
        shutil.rmtree(deltas / f"00000{number}")
    again = Follower(path, deltas)
    np.testing.assert_array_equal(again.model.serve(IDS), exported[1][3])
    assert again.update() == []
    shutil.move(later, deltas)
    assert again.update() == [4]
    np.testing.assert_array_equal(again.model.serve(IDS), exported[1][4])
    once_more = Follower(again.save(tmp_path / "versions"), deltas)
    assert once_more.number == 4
    np.testing.assert_array_equal(once_more.model.serve(IDS), exported[1][4])
    assert sorted(each.name for each in (tmp_path / "versions").iterdir()) == ["3", "4"]


def test_a_model_of_another_export_is_refused(served, exported, tmp_path):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    strategies.export(model, tmp_path / "other")
    follower = Follower(tmp_path / "other", served[1])
    with pytest.raises(ValueError, match="must be of the same export as the SavedModel"):
        follower.update()
    model.export(tmp_path / "plain", verbose=False)
    with pytest.raises(ValueError, match=r"must be written by strategies.export.*'serve'"):
        Follower(tmp_path / "plain", served[1])


def test_deltas_may_not_be_there_yet(exported, tmp_path):
    assert Follower(exported[0] / "served", tmp_path / "none").update() == []


def killed(forked, what, directory, within):
    """Runs a program until it is killed at a random moment; returns whether it was."""
    process = forked.popen([forked.python, str(PROGRAMS / "live_killed.py"), what, str(directory)])
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("begun "):
            break
    else:
        pytest.fail("".join(lines))
    time.sleep(random.uniform(0, within))
    with contextlib.suppress(ProcessLookupError):  # done
        os.kill(int(line.split()[1]), signal.SIGKILL)
    rest = process.stdout.read()
    assert "Traceback" not in rest, rest
    process.wait()
    return "done" not in rest


@pytest.mark.slow
def test_processes_are_killed_and_nothing_is_lost_or_half_applied(forked, tmp_path):
    deltas, expected = tmp_path / "deltas", tmp_path / "expected"
    ids = np.arange(300).reshape([100, 3])
    follower, left_over = None, 0
    for kill in range(KILLS):
        assert killed(forked, "train", tmp_path, 0.2)
        left_over += any(path.name.startswith(".") for path in deltas.iterdir())
        follower = follower or Follower(tmp_path / "served", deltas)
        assert follower.update(), "each run exports some"
        outputs = follower.model.serve(ids)
        np.testing.assert_array_equal(outputs, np.load(expected / f"{follower.number}.npy"))
        print(f"kill {kill} of the training: {follower.number} deltas, {left_over} left over")
    assert follower.number == len(delta_folder.folders(deltas))
    again = Follower(tmp_path / "served", deltas)
    assert len(again.update()) == follower.number
    np.testing.assert_array_equal(again.model.serve(ids), outputs)
    versions, verified, half_written = tmp_path / "versions", set(), 0
    for kill in range(KILLS):
        was_killed = killed(forked, "follow", tmp_path, 0.8)
        half_written += any(path.name.startswith(".") for path in versions.iterdir())
        new = {path.name for path in versions.iterdir() if path.name.isdigit()} - verified
        for name in sorted(new):
            served = tf.saved_model.load(str(versions / name))
            np.testing.assert_array_equal(served.serve(ids), np.load(expected / f"{name}.npy"))
        verified |= new
        print(f"kill {kill} of the follower: {len(verified)} versions, {half_written} half written")
        if not was_killed:
            break
