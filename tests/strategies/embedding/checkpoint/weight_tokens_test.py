"""What Keras does with weights, on an embedding's rows; most of it stands in tests/distributed."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies.embedding.checkpoint import weight_tokens
from strategies.embedding.tf_keras_layer import DistributedEmbedding as TfKerasEmbedding
from tests.support.check_jobs import checks_of

pytestmark = pytest.mark.training

slow = pytest.mark.slow
CHECKS = pytest.mark.parametrize(
    "check",
    checks_of(
        "embedding_weights.py",
        slow=[
            "early_stopping_restores_the_best_weights",
            "only_the_present_optimizers_state_is_saved",
            "what_is_restored_is_the_next_optimizers_and_not_a_former_ones",
            "centered_rmsprop",
            "frozen_rows_stay",
            "other_values_than_its_own_are_refused",
            "a_clone_takes_the_weights",
            "weights_are_saved_by_a_callback_and_loaded",
            "files_of_arrays_are_refused",
        ],
    ),
)
APIS = pytest.mark.parametrize(
    ("api", "embedding"),
    [(keras, strategies.DistributedEmbedding), (tf_keras, TfKerasEmbedding)],
    ids=["keras", "tf_keras"],
)


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        pytest.param("keras", "none", marks=slow),
        pytest.param("tf_keras", "mirrored", marks=slow),
    ],
)
@CHECKS
def test_in_one_process(run_check, check, api, kind):
    run_check(check, api, kind, workers=0)


@slow
@pytest.mark.parametrize(
    ("api", "workers", "ps", "mode"),
    [
        ("keras", 2, 0, "sync"),
        pytest.param("tf_keras", 2, 2, "sync", marks=slow),
        pytest.param("keras", 1, 1, "async", marks=slow),
    ],
)
@CHECKS
def test_on_several_workers_and_on_servers(run_check, check, api, workers, ps, mode):
    run_check(check, api, "cluster", mode, workers=workers, ps=ps)


@APIS
def test_a_layer_gives_its_rows_and_takes_them_back(api, embedding):
    layer = embedding(2, name="ids")
    layer.build()
    rows = np.arange(6.0).reshape([3, 2])
    layer.set_rows([5, -7, 2**63 - 1], rows)
    (weight,) = layer.get_weights()
    np.testing.assert_allclose(np.asarray(weight), np.zeros([1, 2]), atol=1e-29)
    layer.set_rows([5, 6], np.ones([2, 2]))
    layer.set_weights([weight])
    assert layer.rows()[0].tolist() == [-7, 5, 2**63 - 1]
    np.testing.assert_array_equal(layer.rows()[1], rows[[1, 0, 2]])


@APIS
def test_a_snapshot_lives_as_long_as_its_array(api, embedding):
    layer = embedding(2)
    layer.build()
    before = len(weight_tokens._taken)
    weights = [layer.get_weights() for _ in range(3)]
    assert len(weight_tokens._taken) == before + 3
    lost = np.array(weights.pop()[0])
    assert len(weight_tokens._taken) == before + 2
    with pytest.raises(ValueError, match="that is still referenced. Received: other values"):
        layer.set_weights([lost])
    with pytest.raises(ValueError, match="Received: add of it"):
        weights[0][0] + weights[1][0]
    with pytest.raises(ValueError, match="Received: numpy.savez"):
        np.savez(io.BytesIO(), *weights[0])


def test_slot_variables_stay_as_with_other_layers():
    layer = strategies.DistributedEmbedding(1, embeddings_initializer="zeros")
    layer(np.array([0]))
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(np.array([3]), training=True))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    step()
    weights = layer.get_weights()
    layer.set_weights(weights)
    step()
    np.testing.assert_allclose(layer.rows()[1], [[-1 - 1.5]])


def test_tables_of_one_width_come_back_together_and_a_shared_row_too():
    features = {
        name: strategies.FeatureConfig(
            strategies.TableConfig(name, 2, input_dim=2, overflow="share"), "sum"
        )
        for name in ("a", "b")
    }
    layer = strategies.DistributedEmbedding(features=features)
    ids = {"a": np.array([[1, 2, 3]]), "b": np.array([[-1, -2, 9]])}
    optimizer = keras.optimizers.SGD(1.0)
    layer(ids)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(sum(layer(ids, training=True).values()))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    step()
    expected, weights = layer(ids), layer.get_weights()
    step()
    assert not np.allclose(layer(ids)["a"], expected["a"])
    layer.set_weights(weights)
    for name in ids:
        np.testing.assert_array_equal(layer(ids)[name], expected[name])
    with pytest.raises(ValueError, match="Received: a snapshot of other tables"):
        other = strategies.DistributedEmbedding(2)
        other.build()
        other.set_weights(weights)


def test_more_rows_than_are_kept_are_refused(monkeypatch):
    monkeypatch.setattr(weight_tokens, "MAX_SNAPSHOT_BYTES", 100)
    layer = strategies.DistributedEmbedding(2, name="ids")
    layer.build()
    layer.set_rows(np.arange(4), np.ones([4, 2]))
    layer.get_weights()
    layer.set_rows(np.arange(5), np.ones([5, 2]))
    with pytest.raises(ValueError, match="more than 100 bytes .* Received: 120 bytes in 'id"):
        layer.get_weights()


def test_another_workers_part_is_refused():
    layer = strategies.DistributedEmbedding(2)
    layer.build()
    (weight,) = layer.get_weights()
    object.__setattr__(weight.snapshot, "part", (1, 2))
    with pytest.raises(ValueError, match="Received: part 1 of 2, on the worker of part 0 of 1"):
        layer.set_weights([weight])


def test_averages_of_weights_have_no_rows():
    model = keras.Sequential([keras.Input([1], dtype="int64"), strategies.DistributedEmbedding(2)])
    model.compile(keras.optimizers.SGD(use_ema=True), "mse")
    with pytest.raises(ValueError, match="Received: SGD with use_ema=True"):
        model.fit(
            np.array([[1]]),
            np.ones([1, 1, 2]),
            callbacks=[keras.callbacks.SwapEMAWeights()],
            verbose=0,
        )


@slow
def test_a_backup_has_the_rows_also_after_clear_session(tmp_path):
    def train(epochs, fails):
        model = keras.Sequential(
            [keras.Input([1], dtype="int64"), strategies.DistributedEmbedding(1, name="ids")]
        )
        model.compile(keras.optimizers.Adagrad(0.1), "mse")

        def at_end(epoch, logs):
            if fails and epoch == 1:
                raise KeyboardInterrupt

        callbacks = [
            keras.callbacks.BackupAndRestore(tmp_path / "backup"),
            keras.callbacks.LambdaCallback(on_epoch_begin=at_end),
        ]
        model.fit(np.array([[1], [2]]), np.ones([2, 1, 1]), epochs=epochs, callbacks=callbacks,
                  shuffle=False, verbose=0)  # fmt: skip
        return model.layers[-1].rows()

    with pytest.raises(KeyboardInterrupt):
        train(3, True)
    ids, rows = train(3, False)
    keras.backend.clear_session()
    expected = train(3, False)
    assert ids.tolist() == [1, 2]
    np.testing.assert_allclose(rows, expected[1])
