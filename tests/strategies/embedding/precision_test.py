"""Tables whose rows, slot variables or exchanges have 16 bits."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies import DistributedEmbedding, TableConfig
from strategies.embedding.tf_keras_layer import DistributedEmbedding as TfKerasEmbedding
from tests.support.check_jobs import checks_of

PROGRAM = "embedding_precision.py"
BITS = "rows_and_slots_are_those_of_one_process_to_the_bit"
SHORT = {"row_dtype": "bfloat16", "slot_dtype": "bfloat16", "exchange_dtype": "bfloat16"}
SLOW = pytest.mark.slow


def is_short(rows):
    return (np.asarray(rows).view(np.uint32) & 0xFFFF == 0).all()


@pytest.mark.training
@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("api", "embedding"), [(keras, DistributedEmbedding), (tf_keras, TfKerasEmbedding)],
    ids=["keras", "tf_keras"],
)  # fmt: skip
@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
def test_a_model_in_16_bits_trains_as_in_32(tmp_path, api, embedding, optimizer):
    """To within the rounding of its rows, and it is the same after a reload."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 50, [512, 3]), random.normal(size=[512, 1])

    def trained(**dtypes):
        api.utils.set_random_seed(1)
        ids = api.Input([3], dtype="int64")
        rows = embedding(8, combiner="mean", name="rows", **dtypes)(ids)
        model = api.Model(ids, api.layers.Dense(1)(rows))
        model.compile(optimizer, "mse")
        return model, model.fit(x, y, batch_size=64, epochs=5, verbose=0).history["loss"]

    model, losses = trained(**SHORT)
    _, expected = trained()
    np.testing.assert_allclose(losses, expected, rtol=5e-3)
    layer = model.get_layer("rows")
    assert is_short(layer.rows()[1])
    model.save(tmp_path / "model.keras")
    again = api.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    more = [each.fit(x, y, batch_size=64, verbose=0).history["loss"] for each in (model, again)]
    assert more[0] == more[1] and is_short(again.get_layer("rows").rows()[1])


@pytest.mark.training
def test_an_id_without_a_row_has_the_values_that_its_row_gets():
    layer = DistributedEmbedding(4, row_dtype="bfloat16", embeddings_initializer="normal")
    ids = tf.range(20, dtype=tf.int64)
    before = layer(ids, training=False).numpy()
    layer(ids, training=True)
    np.testing.assert_array_equal(layer.rows()[1], before)
    assert is_short(before)


@pytest.mark.parametrize("name", SHORT)
def test_other_dtypes_are_refused(name):
    for make in (
        lambda **one: TableConfig("t", 4, **one),
        lambda **one: DistributedEmbedding(4, **one),
    ):
        with pytest.raises(ValueError, match=f"{name} must be one of 'float32', 'bfloat16'"):
            make(**{name: "float16"})
        with pytest.raises(ValueError, match=f"Received: {tf.bfloat16!r}"):
            make(**{name: tf.bfloat16})


def test_a_replicated_table_exchanges_no_rows():
    options = {"input_dim": 9, "placement": "replicated"}
    TableConfig("t", 4, row_dtype="bfloat16", **options)
    with pytest.raises(ValueError, match="with exchange_dtype='bfloat16'"):
        TableConfig("t", 4, exchange_dtype="bfloat16", **options)


def test_with_features_the_dtypes_are_those_of_the_tables():
    features = {"a": strategies.FeatureConfig(TableConfig("a", 4, **SHORT))}
    layer = DistributedEmbedding(features=features)
    again = DistributedEmbedding.from_config(layer.get_config())
    assert again.specs.features["a"].table.row_dtype == "bfloat16"
    with pytest.raises(ValueError, match="Received: row_dtype"):
        DistributedEmbedding(features=features, row_dtype="bfloat16")


@pytest.mark.parametrize(
    ("workers", "replicas"),
    [(2, 1), pytest.param(4, 1, marks=SLOW), pytest.param(1, 2, marks=SLOW)],
    ids=["2", "4", "1 of 2 replicas"],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        PROGRAM,
        slow=[
            "gradients_that_16_bits_do_not_hold_are_rounded_on_the_way_only",
            "tables_of_different_dtypes_are_in_one_layer",
        ],
    ),
)
def test_on_workers(run_check, check, workers, replicas):
    run_check(check, "sync", replicas, workers=workers)


@SLOW
@pytest.mark.parametrize("mode", ["sync", "half_async", "geo"])  # "async" is as "half_async" here
@pytest.mark.parametrize("check", checks_of(PROGRAM))
def test_on_servers(run_check, check, mode):
    run_check(check, mode, 1, ps=2)
