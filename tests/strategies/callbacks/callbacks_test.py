"""Callbacks, with workers that are only numbers; real ones are in tests/distributed/around.py."""

import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies import callbacks
from strategies.callbacks import (
    LearningRateWarmup,
    Throughput,
    first_worker,
    on_first_worker,
    throughput,
)
from strategies.collectives import workers
from strategies.profiling.spans import BACKGROUND, EXCHANGE, INPUT, Recorded, Span
from tests.support.check_jobs import checks_of
from tests.support.fakes import FakeWorker

pytestmark = pytest.mark.training

KERAS = pytest.mark.parametrize("api", [keras, tf_keras])


@pytest.mark.parametrize("api", [keras, pytest.param(tf_keras, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "check",
    checks_of(
        "around.py",
        slow=[
            "a_model_is_saved_by_all_and_written_once",
            "a_checkpoint_is_written_once",
            "weights_are_written_once",
            "interrupted_training_ends_where_the_whole_one_ends",
            "tensorboard_has_each_epoch_once_and_keeps_workers_in_step",
            "training_ends_on_all_workers_at_one_workers_gradient_that_is_no_number",
            "the_learning_rate_rises_step_by_step_to_that_of_all_replicas",
            "what_is_exported_serves_what_the_model_gives",
        ],
    ),
)
def test_around_training_on_real_workers(run_check, check, api):
    run_check(check, api.__name__)


STRATEGY = tf.distribute.get_strategy()


def use(monkeypatch, worker):
    for module in (first_worker, workers):
        monkeypatch.setattr(module, "collectives_of", lambda strategy: worker)
    return worker


def model_of(api, optimizer="sgd"):
    model = api.Sequential([api.layers.InputLayer([2]), api.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def fit(model, *given, **options):
    x = np.ones([8, 2], "float32")
    options = {"batch_size": 2, "verbose": 0, **options}
    return model.fit(x, x[:, :1], callbacks=list(given), **options).history


@KERAS
@pytest.mark.parametrize("rank", [0, 1])
def test_a_callback_acts_on_the_first_worker(monkeypatch, api, rank):
    worker = use(monkeypatch, FakeWorker(rank))
    seen = []

    class Recorder(api.callbacks.Callback):
        def set_model(self, model):
            super().set_model(model)
            seen.append("set_model")

        def on_train_begin(self, logs=None):
            seen.append("on_train_begin")

        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)

        def on_epoch_end(self, epoch, logs=None):
            seen.append("on_epoch_end")

    fit(model_of(api), on_first_worker(Recorder(), STRATEGY))
    everything = ["set_model", "on_train_begin", 0, 1, 2, 3, "on_epoch_end"]
    assert seen == (everything if rank == 0 else [])
    assert worker.agreements == 2  # all begin together, and end together


@pytest.mark.parametrize("change", ["stop", "rate"])
def test_the_first_worker_alone_changes_nothing(monkeypatch, change):
    use(monkeypatch, FakeWorker(0))

    class Change(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if change == "stop":
                self.model.stop_training = True
            else:
                self.model.optimizer.learning_rate = 0.5

    with pytest.raises(ValueError, match="Received: Change.on_epoch_end, which stopped it or set"):
        fit(model_of(keras), on_first_worker(Change(), STRATEGY))


@KERAS
def test_what_is_in_step_by_itself_is_refused(api):
    class Mine(api.callbacks.EarlyStopping):
        pass

    strategy = tf.distribute.get_strategy()
    ours = LearningRateWarmup(3), Throughput(8), callbacks.StepTimeline("steps.json")
    for callback in (Mine(), api.callbacks.ReduceLROnPlateau(), *ours):
        with pytest.raises(ValueError, match="fit without on_first_worker: the logs are the same"):
            on_first_worker(callback, strategy)


def test_a_backup_that_another_worker_does_not_see_is_an_error(monkeypatch, tmp_path):
    use(monkeypatch, FakeWorker(1, others=lambda *_: [3]))
    backup = on_first_worker(keras.callbacks.BackupAndRestore(tmp_path / "backup"), STRATEGY)
    with pytest.raises(ValueError, match=r"initial epochs \[3, 0\], by rank. Put backup_dir"):
        fit(model_of(keras), backup)


@pytest.mark.each_value
@pytest.mark.parametrize("save_freq", ["epoch", 1])
@pytest.mark.parametrize("double", [False, True])
def test_a_backup_that_is_cut_short_leaves_the_last_one(tmp_path, double, save_freq):
    """As of a worker that is killed in the midst of it; Keras's own backup is lost then."""

    def backup():
        return on_first_worker(
            keras.callbacks.BackupAndRestore(
                tmp_path, save_freq=save_freq, double_checkpoint=double, delete_checkpoint=False
            ),
            STRATEGY,
        )

    class Killed(BaseException):
        pass

    def half(filepath, **_):
        assert filepath != str(tmp_path / "latest.weights.h5")
        Path(filepath).write_bytes((tmp_path / "latest.weights.h5").read_bytes()[:1000])
        raise Killed

    model = model_of(keras)
    fit(model, backup(), epochs=2)
    expected = model.get_weights()
    model.save_weights = half
    with pytest.raises(Killed):
        fit(model, backup(), epochs=4)
    resumed = model_of(keras)
    restored = []
    look = keras.callbacks.LambdaCallback(
        on_train_begin=lambda _: restored.extend(resumed.get_weights())
    )
    fit(resumed, backup(), look, epochs=2)
    for value, wanted in zip(restored, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert (tmp_path / "latest.weights.h5.bkp").exists() == double


@pytest.mark.in_turn
@KERAS
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_the_learning_rate_rises_step_by_step(api, optimizer):
    rates = []

    class Rates(api.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    model = model_of(api, getattr(api.optimizers, optimizer)(0.1))
    warmup = LearningRateWarmup(6, scale=4)
    fit(model, warmup, Rates(), epochs=2)
    np.testing.assert_allclose(rates, [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.4], rtol=1e-5)
    # What others set after it stays, in this run and in the next.
    model.optimizer.learning_rate = 0.05
    fit(model, warmup)
    fit(model, LearningRateWarmup(epochs=1, scale=4))
    assert np.isclose(float(model.optimizer.learning_rate.numpy()), 0.05)


@pytest.mark.parametrize(
    ("done", "together", "expected"), [(3, 1, 0.25), (6, 1, 0.4), (8, 4, 0.4), (7, 1, 0.07)]
)
def test_a_warm_up_that_was_interrupted_goes_on(done, together, expected):
    optimizer = keras.optimizers.SGD(0.07)
    optimizer.build([keras.Variable(0.0)])
    optimizer.iterations.assign(done)
    warmup = LearningRateWarmup(6, scale=4, learning_rate=0.1)
    warmup.set_model(model_in_training(optimizer, together))
    warmup.on_train_begin()
    warmup.on_train_batch_begin(0)
    assert np.isclose(float(optimizer.learning_rate.numpy()), expected)


def model_in_training(optimizer, together=1):
    return types.SimpleNamespace(
        optimizer=optimizer, steps_per_execution=together, _flatten_layers=list
    )


def test_just_behind_a_warm_up_its_rate_is_not_multiplied_again():
    optimizer = keras.optimizers.SGD(0.35)
    optimizer.build([keras.Variable(0.0)])
    optimizer.iterations.assign(8)
    warmup = LearningRateWarmup(6, scale=4)
    warmup.set_model(model_in_training(optimizer, together=4))
    with pytest.raises(ValueError, match="an optimizer after 8 of 6 steps"):
        warmup.on_train_begin()


@pytest.mark.in_turn
@KERAS
def test_another_optimizer_has_a_warm_up_of_its_own(api):
    warmup = LearningRateWarmup(epochs=1, scale=4)
    for rate in (0.1, 0.01):
        model = model_of(api, api.optimizers.SGD(rate))
        fit(model, warmup)
        assert np.isclose(warmup.rate(0), rate)
        assert np.isclose(float(model.optimizer.learning_rate.numpy()), rate * 3.25)


def test_epochs_have_fewer_updates_where_gradients_are_accumulated():
    model = model_of(keras, keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    warmup = LearningRateWarmup(epochs=1, scale=3)
    fit(model, warmup, epochs=2)
    assert [round(warmup.rate(step), 6) for step in range(3)] == [0.1, 0.2, 0.3]
    assert np.isclose(float(model.optimizer.learning_rate.numpy()), 0.3)


def test_the_rates_are_not_known_before_training():
    with pytest.raises(ValueError, match="cannot be computed before training begins"):
        LearningRateWarmup(3).rate(1)


@KERAS
def test_all_optimizers_of_a_model_are_warmed_up(api):
    model = TwoOptimizers.of(api)
    model.compile("sgd")
    model.fit(np.ones([8, 2]), batch_size=2, callbacks=[LearningRateWarmup(2, scale=3)], verbose=0)
    rates = [float(each.learning_rate.numpy()) for each in (model.first, model.second)]
    np.testing.assert_allclose(rates, [0.3, 0.03], rtol=1e-6)


class TwoOptimizers:
    """Makes models that train two layers by an optimizer each, as a GAN does."""

    @staticmethod
    def of(api):
        class Model(api.Model):
            def __init__(self):
                super().__init__()
                self.layer = api.layers.Dense(1, name="layer")
                self.other = api.layers.Dense(1, name="other")
                self.first, self.second = api.optimizers.SGD(0.1), api.optimizers.SGD(0.01)

            def call(self, x):
                return self.layer(x) + self.other(x)

            def train_step(self, x):
                for optimizer, layer in ((self.first, self.layer), (self.second, self.other)):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean(layer(x))
                    variables = layer.trainable_variables
                    gradients = tape.gradient(loss, variables)
                    optimizer.apply_gradients(zip(gradients, variables, strict=True))
                return {"loss": loss}

        model = Model()
        model(np.ones([2, 2], "float32"))
        return model


def test_a_warm_up_that_goes_on_has_to_be_told_where_it_began():
    model = model_of(keras)
    fit(model)
    with pytest.raises(ValueError, match="an optimizer after 4 of 6 steps"):
        fit(model, LearningRateWarmup(6, scale=4))


@KERAS
def test_a_schedule_is_refused(api):
    schedule = api.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with pytest.raises(ValueError, match="plain number, .*Received: .*CosineDecay has warmup_"):
        fit(model_of(api, api.optimizers.SGD(schedule)), LearningRateWarmup(6, scale=4))


def test_epochs_of_unknown_length_are_refused():
    dataset = tf.data.Dataset.from_tensors((np.ones([2, 2]), np.ones([2, 1])))
    dataset = dataset.filter(lambda *_: True)
    with pytest.raises(ValueError, match="of unknown length. Pass steps to the warm-up"):
        warmup = LearningRateWarmup(epochs=1, scale=2)
        model_of(keras).fit(dataset, callbacks=[warmup], verbose=0, shuffle=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "must be given. Received: steps=None, epochs=None"),
        ({"steps": 1, "epochs": 1}, "must be given. Received: steps=1, epochs=1"),
        ({"steps": 0}, "steps must be above 0. Received: 0"),
        ({"epochs": 1, "scale": float("nan")}, "scale must be above 0. Received: nan"),
        ({"steps": 1, "learning_rate": -1}, "learning_rate must be above 0. Received: -1"),
    ],
)
def test_wrong_warm_ups(arguments, message):
    with pytest.raises(ValueError, match=message):
        LearningRateWarmup(**arguments)


@pytest.mark.in_turn
@KERAS
def test_throughput_leaves_validation_out_and_the_bar_shows_it(api, capsys):
    ticks = iter([0.0, 2.0, 100.0, 102.0] * 2)
    model = model_of(api)
    x = np.ones([8, 2], "float32")
    history = fit(
        model,
        Throughput(8, clock=lambda: next(ticks)),
        epochs=2,
        validation_data=(x, x[:, :1]),
        verbose=2,
    )
    assert history["samples_per_second"] == [2.0, 2.0]
    assert "samples_per_second: 2.0" in capsys.readouterr().out
    assert history["communication_share"] == [0.0, 0.0]


def test_the_share_of_communication_is_of_the_time_in_which_it_trains(monkeypatch):
    exchanges = [Span("before", 80.0, 101.0), Span("both", 103.0, 105.0), Span("2", 104.0, 106.0)]
    streams = [
        Recorded(EXCHANGE, True, [*exchanges, Span("in validation", 111.0, 115.0)]),
        Recorded(BACKGROUND, False, [Span("push", 107.0, 108.0)]),
        Recorded(INPUT, False, [Span("next batch", 101.0, 103.0)]),
    ]
    now = iter([100.0, 110.0, 120.0, 130.0, 130.0])
    monkeypatch.setattr(throughput, "time", types.SimpleNamespace(time=lambda: next(now)))
    monkeypatch.setattr(throughput, "read_spans", lambda start: (streams, start))
    speed = Throughput(80)
    speed.on_epoch_begin(0)
    speed.on_test_begin()
    speed.on_test_end()
    assert speed._share() == 5 / 20


def test_the_bar_shows_the_speed_so_far(monkeypatch):
    """Keras's own bar of numbers, live only where it is shown and the steps are known."""
    now = iter([100.0, 100.0, 104.0, 104.0, 104.5, 104.5, 104.5])
    monkeypatch.setattr(throughput, "time", types.SimpleNamespace(time=lambda: next(now)))
    monkeypatch.setattr(Throughput, "_share", lambda self: 0.25)
    speed = Throughput(80)
    speed.set_params({"verbose": "auto", "steps": 8, "epochs": 1})  # Keras 3's default
    speed.on_epoch_begin(0)
    logs = [{"loss": 1.0} for _ in range(3)]
    speed.on_train_batch_end(0, logs[0])
    speed.on_train_batch_end(1, logs[1])
    speed.on_train_batch_end(2, logs[2])
    shown = {"loss": 1.0, "samples_per_second": 5.0, "communication_share": 0.25}
    assert logs == [{"loss": 1.0}, shown, shown]  # anew after a second
    for params in ({"verbose": 2, "steps": 8}, {"verbose": 1, "steps": None}):
        speed.set_params(params)
        speed.on_train_batch_end(3, silent := {"loss": 1.0})
        assert silent == {"loss": 1.0}


def test_a_stock_strategy_of_several_workers_is_refused():
    extended = types.SimpleNamespace(_in_multi_worker_mode=lambda: True)
    with pytest.raises(ValueError, match="Use strategies.MultiWorkerMirroredStrategy"):
        strategies.barrier(types.SimpleNamespace(extended=extended))
