"""Training that was interrupted ends with the bits of training that was not."""

import json
import re
import shutil
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.callbacks import Checkpoint, checkpoint
from tests.support.check_jobs import PROGRAMS
from tests.support.job import HANGING_SECONDS

SLOW = pytest.mark.slow

pytestmark = pytest.mark.training
EPOCHS = 3
PROGRAM = PROGRAMS / "killed_training.py"


class Interrupted(Exception):
    pass


class Interruption(keras.callbacks.Callback):
    """Ends training after a number of steps of the optimizer."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self.step:
            raise Interrupted


def train(directory, *callbacks, every=3, known=True, embedding=False, background=None, **options):
    """Trains as a new process would; returns the weights and the history."""
    keras.utils.set_random_seed(7)
    x = np.random.default_rng(0).normal(size=[20, 4]).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(20).batch(4)
    if not known:
        data = data.filter(lambda x, y: True)
    inputs = keras.Input([4])
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(8)(inputs))
    if embedding:
        rows = strategies.DistributedEmbedding(2, name="rows")(
            keras.ops.cast(keras.ops.round(inputs[:, :1] * 3), "int64")
        )
        hidden = keras.layers.Concatenate()([hidden, keras.layers.Flatten()(rows)])
    outputs = keras.layers.Dense(1)(keras.layers.BatchNormalization()(hidden))
    model = keras.Model(inputs, outputs)
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 15))
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    saved = []
    if directory is not None:
        saved = [Checkpoint(directory, every_steps=every, background=background)]
    options = {"epochs": EPOCHS, "verbose": 0, "shuffle": False}
    history = model.fit(data, callbacks=[*saved, *callbacks], **options).history
    values = [each.numpy() for each in model.variables if "rows" not in each.path]
    return values + (list(model.get_layer("rows").rows()) if embedding else []), history


def assert_same(found, expected):
    for mine, theirs in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)


PIPELINES = {
    "shuffled": (lambda data: data.shuffle(20), {}),
    "mapped": (lambda data: data.shuffle(5).map(lambda x, y: (x * 2, y), num_parallel_calls=2), {}),
    "endless": (lambda data: data.shuffle(20).repeat(), {"steps_per_epoch": 7}),
    "no length": (lambda data: data.shuffle(20).filter(lambda x, y: True), {}),
    "two shuffles": (lambda data: data.shuffle(20).map(lambda x, y: (x, y)).shuffle(5), {}),
    "captured": (lambda data: tf.data.Dataset.range(2).flat_map(lambda _: data.shuffle(20)), {}),
    "cached": (lambda data: data.cache().shuffle(20), {}),
    "random": (lambda data: data.map(lambda x, y: (x + tf.random.uniform([4]), y)), {}),
}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    "name", ["shuffled", *(pytest.param(name, marks=SLOW) for name in [*PIPELINES][1:])]
)
def test_data_are_not_read_again_if_their_position_can_be_saved(tmp_path, monkeypatch, name):
    make, options = PIPELINES[name]
    skipped = []
    skip = Checkpoint._skip
    monkeypatch.setattr(Checkpoint, "_skip", lambda *args: skipped.append(skip(*args)))

    def train(directory, *callbacks):
        keras.utils.set_random_seed(7)
        x = np.random.default_rng(0).normal(size=[20, 4]).astype("float32")
        data = make(tf.data.Dataset.from_tensor_slices((x, x[:, :1]))).batch(4).prefetch(2)
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        saved = [] if directory is None else [Checkpoint(directory, every_steps=3)]
        options_of_fit = {"epochs": 4, "verbose": 0, "shuffle": False, **options}
        model.fit(data, callbacks=[*saved, *callbacks], **options_of_fit)
        return model.get_weights(), None

    # See [Note: orders of a shuffle] in data/iterator_position.py.
    whole = train(tmp_path / "whole" if name == "two shuffles" else None)
    for stop in (5, 8, 14):
        with pytest.raises(Interrupted):
            train(tmp_path / "resumed", Interruption(stop))
    assert_same(train(tmp_path / "resumed"), whole)
    assert bool(skipped) == (name in ("captured", "cached", "random"))


def test_a_position_of_other_data_is_an_error(tmp_path):
    def train(examples, *callbacks):
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensors((tf.ones([1]), tf.ones([1]))).repeat(examples).batch(2)
        model.fit(
            data,
            verbose=0,
            shuffle=False,
            callbacks=[Checkpoint(tmp_path, every_steps=2, background=False), *callbacks],
        )
        return model

    with pytest.raises(Interrupted):
        train(10, Interruption(4))
    with pytest.raises(ValueError, match="Received: 6 steps an epoch of .*has 5 steps an epoch"):
        train(12)
    for file in tmp_path.glob("step-*/data-*"):
        file.unlink()
    assert int(train(12).optimizer.iterations.numpy()) == 6


def test_a_model_without_variables_is_an_error_until_it_is_called(tmp_path):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    x, model = np.ones([8, 2], "float32"), Model()
    model.compile("adam", "mse")
    options = {"verbose": 0, "callbacks": [Checkpoint(tmp_path, every_steps=1)]}
    with pytest.raises(ValueError, match=r"must have its variables before fit.* model\(x"):
        model.fit(x, x[:, :1], **options)
    model(x[:1])
    model.fit(x, x[:, :1], **options)
    assert tmp_path.joinpath("latest.json").exists()


@SLOW
def test_a_large_position_is_not_saved_again(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_POSITION_BYTES", 0)
    with pytest.raises(Interrupted):
        train(tmp_path, Interruption(4), background=False)
    assert list(tmp_path.glob("step-000000003/data-0.index"))
    with pytest.raises(Interrupted):
        train(tmp_path, Interruption(10), background=False)
    assert tmp_path.joinpath("step-000000009").exists()
    assert not list(tmp_path.glob("*/data-*"))
    assert_same(train(tmp_path), train(None))


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    "options",
    [{}, *(pytest.param(each, marks=SLOW) for each in ({"known": False}, {"embedding": True}))],
    ids=["length", "no length", "rows"],
)
@pytest.mark.parametrize(
    "stops",
    [(4, 9), pytest.param((1,), marks=SLOW), pytest.param((5, 8, 14), marks=SLOW)],
    ids=str,
)  # fmt: skip
def test_it_ends_with_the_bits_of_the_whole(tmp_path, stops, options):
    whole = train(None, **options)
    for stop in stops:
        with pytest.raises(Interrupted):
            train(tmp_path, Interruption(stop), **options)
    assert_same(train(tmp_path, **options), whole)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"embedding": True}, marks=SLOW)], ids=["dense", "rows"]
)
def test_a_checkpoint_at_the_end_of_data_of_unknown_length(tmp_path, options):
    class InterruptedEpoch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise Interrupted

    options |= {"known": False, "every": 5, "background": False}
    whole = train(None, **options)
    with pytest.raises(Interrupted):
        train(tmp_path, InterruptedEpoch(), **options)
    latest = json.loads((tmp_path / "latest.json").read_text())
    assert (latest["step"], latest["epoch"], latest["batch"]) == (10, 1, 5)
    assert_same(train(tmp_path, **options), whole)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_checkpoint_within_an_epoch_of_unknown_length(tmp_path):
    with pytest.raises(Interrupted):
        train(tmp_path, Interruption(4), known=False, background=False)
    assert json.loads((tmp_path / "latest.json").read_text())["step"] == 3


@pytest.mark.parametrize(
    "embedding", [pytest.param(False, marks=SLOW), True], ids=["dense", "rows"]
)
def test_a_checkpoint_that_is_written_beside_training_is_of_one_step(tmp_path, embedding):
    class Slow(keras.callbacks.Callback):
        """Lets the thread that writes take some steps, as a large state does."""

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.02)

    whole = train(None, embedding=embedding)
    with pytest.raises(Interrupted):
        train(tmp_path, Slow(), Interruption(13), embedding=embedding)
    latest = json.loads((tmp_path / "latest.json").read_text())
    assert 3 <= latest["step"] <= 13
    assert latest["folder"] == f"step-{latest['step']:09d}"
    assert_same(train(tmp_path, embedding=embedding), whole)


def test_an_error_of_the_thread_ends_training(tmp_path):
    class Damage(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for file in tmp_path.glob("unfinished/rows0"):
                shutil.rmtree(file)

    with pytest.raises(OSError, match="Checkpoints cannot be saved. Received: No such file"):
        train(tmp_path, Damage(), embedding=True)


@SLOW
def test_a_worker_without_memory_for_a_copy_is_waited_for(forked, tmp_path):
    arguments = "--step-timeout", 60, PROGRAMS / "little_memory.py", tmp_path
    code, output = forked.run("--workers", 2, *arguments, timeout=200)
    assert code == 0 and output.count("] passed") == 2, output
    assert "[worker 1] WARNING:absl:A checkpoint is written while training waits" in output


def test_sigterm_waits_for_the_checkpoint(forked):
    process = forked.popen([forked.python, str(PROGRAMS / "terminated.py"), str(forked.directory)])
    code, output = forked.finish(process, timeout=HANGING_SECONDS)
    assert code == -signal.SIGTERM, output
    assert "terminates" in output and "goes on" not in output
    # The checkpoint was begun two steps before the signal, and takes seconds.
    assert json.loads((forked.directory / "latest.json").read_text())["step"] == 5
    forked.assert_nothing_left()


def test_several_steps_an_execution(tmp_path):
    whole = train(None, steps_per_execution=5)
    with pytest.raises(Interrupted):
        train(tmp_path, Interruption(10), steps_per_execution=5)
    assert_same(train(tmp_path, steps_per_execution=5), whole)


def test_what_has_ended_is_not_trained_again(tmp_path):
    whole = train(tmp_path)
    assert_same(train(tmp_path, Interruption(1), Interruption(16)), (whole[0], {}))


def test_one_checkpoint_is_kept_and_a_killed_save_is_in_nobodys_way(tmp_path):
    for folder in ("step-000000003", "unfinished"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "state-0.npz").write_bytes(b"half")
    train(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.json", "step-000000015"]


def test_a_damaged_checkpoint_changes_nothing(tmp_path):
    with pytest.raises(Interrupted):
        train(tmp_path, Interruption(5), background=False)
    for name in ("latest.json", "step-000000003/state-0.npz"):
        path = tmp_path / name
        data = path.read_bytes()
        for damaged in (data[: len(data) // 2], data[:-1], data[:300] + b"\1" + data[301:], b""):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match="must be complete, and must be of the same model"):
                train(tmp_path)
        path.write_bytes(data)
    train(tmp_path)


def run_training(forked, *arguments, workers=2, ps=0):
    """Returns the output, and of each worker that ended its digest and number of steps."""
    code, output = forked.run("--workers", workers, "--ps", ps, *arguments, timeout=400)
    assert code == 0, output
    return output, [line.split()[4:] for line in output.splitlines() if " weights " in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ps", "options"),
    [
        (1, ["--embedding"]),  # one of the workers saves no rows
        (2, ["--embedding"]),
        (1, ["--replicas", 2]),
        (0, ["--files"]),
        (0, ["--reduce"]),
        (0, ["--replicas", 2]),
        (0, ["--replicas", 2, "--reduce", "--embedding"]),
    ],
    ids=str,
)
def test_no_bit_changes_with_servers_replicas_or_split_state(forked, ps, options):
    _, whole = run_training(forked, PROGRAM, "whole", *options, ps=ps)
    killed = "--max-restarts", 3, PROGRAM, "killed", "--kill", 4, 11, *options
    output, found = run_training(forked, *killed, ps=ps)
    assert "restart 2 of 3" in output
    assert sorted(found) == sorted(whole) and len(whole) == 2
    forked.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "an_epoch", "options"),
    [("async", 16, []), ("half_async", 15, ["--uneven"]), ("geo", 8, [])],
    ids=["async", "half_async", "geo"],
)
def test_workers_out_of_step_go_on_behind_the_last_epoch(forked, mode, an_epoch, options):
    kills = an_epoch + 2, 2 * an_epoch + 2
    killed = "--max-restarts", 3, PROGRAM, "killed", "--every", 1, "--kill", *kills
    output, found = run_training(forked, *killed, "--embedding", "--mode", mode, *options, ps=1)
    for epochs in range(3):
        assert output.count(f"] begins behind step {epochs * an_epoch}\n") == 2, output
    assert [int(steps) for _, steps in found] == [4 * an_epoch] * 2
    forked.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["--embedding"], ["--embedding", "--reduce"]], ids=["rows", "split state"]
)
def test_with_a_worker_less_training_goes_on(forked, options):
    output, _ = run_training(forked, PROGRAM, "whole", *options, workers=3)
    whole = last_loss(output)
    arguments = "--max-restarts", 3, "--min-workers", 2, PROGRAM, "killed", "--kill", 14
    output, found = run_training(forked, *arguments, "--lost", 3, *options, workers=3)
    assert "worker 2 failed 2 times in a row; the job continues with 2 of its workers" in output
    # A checkpoint is due every third step; one with rows may be of a later step.
    resumed = [int(step) for step in re.findall(r"\] begins behind step (\d+)\n", output)]
    assert 9 <= max(resumed) <= 14, resumed
    assert [steps for _, steps in found] == ["32", "32"]
    assert abs(last_loss(output) - whole) < 0.2 * whole
    forked.assert_nothing_left()


def last_loss(output):
    (loss, *_) = [float(line.split()[-1]) for line in output.splitlines() if "] loss " in line]
    return loss


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--embedding"]], ids=["dense", "rows"])
def test_killed_workers_change_no_bit(forked, communication, options):
    def weights(*arguments):
        code, output = forked.run("--workers", 2, *arguments, *options)
        assert code == 0, output
        found = [line.split()[4:] for line in output.splitlines() if " weights " in line]
        assert len(found) == 2, output
        return output, found

    _, whole = weights(PROGRAM, "whole")
    output, killed = weights("--max-restarts", 3, PROGRAM, "killed", "--kill", 4, 11)
    assert "restart 2 of 3" in output
    assert sorted(killed) == sorted(whole)
    forked.assert_nothing_left()


def test_another_models_checkpoint_is_refused(tmp_path):
    train(tmp_path)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match="of the same model"):
        model.fit(np.ones([4, 4]), np.ones([4, 1]), verbose=0,
                  callbacks=[Checkpoint(tmp_path, every_steps=1)])  # fmt: skip


def test_a_word_for_background_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be True, False or None. Received: 'no'"):
        Checkpoint(tmp_path, every_steps=1, background="no")


def test_tf_keras_is_refused(tmp_path):
    import tf_keras

    class Own(tf_keras.optimizers.SGD):
        pass

    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    model.compile(Own(), "mse")
    with pytest.raises(ValueError, match="model of tf_keras"):
        model.fit(np.ones([4, 4]), np.ones([4, 1]), verbose=0,
                  callbacks=[Checkpoint(tmp_path, every_steps=1)])  # fmt: skip
