"""A model with a DistributedEmbedding where this package is not: in a SavedModel, and in files."""

import subprocess
import sys

import keras
import numpy as np
import pyarrow
import pytest
import tensorflow as tf
import tf_keras
from pyarrow import parquet

from strategies import DistributedEmbedding, FeatureConfig, TableConfig
from strategies.embedding import tf_keras_layer
from strategies.embedding.checkpoint import npy_stream, snapshot

pytestmark = pytest.mark.training

LOADED = """
import sys
import numpy as np
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1])
with np.load(sys.argv[2]) as file:
    ids, expected = file["ids"], file["expected"]
found = served.serve({name: tf.constant(ids) for name in ("known", "own", "full")})
np.testing.assert_allclose(found, expected, atol=1e-6)
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    graph = tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1])
    signature = graph.signature_def["serving_default"]
    feed = {each.name: ids for each in signature.inputs.values()}
    (output,) = (each.name for each in signature.outputs.values())
    np.testing.assert_allclose(session.run(output, feed), expected, atol=1e-6)
assert not [name for name in sys.modules if name.split(".")[0] == "strategies"]
print("passed")
"""


def tables_of():
    return {
        name: FeatureConfig(TableConfig(name, width, embeddings_initializer="normal", **each), how)
        for name, width, how, each in [
            ("known", 3, "mean", {}),
            ("own", 2, None, {"optimizer": keras.optimizers.Adam(0.1)}),
            ("full", 3, "sum", {"input_dim": 5, "overflow": "share"}),
        ]
    }


def model_of(unseen):
    inputs = {name: keras.Input([2], dtype="int64", name=name) for name in tables_of()}
    layer = DistributedEmbedding(features=tables_of(), unseen=unseen, name="tables")
    outputs = [keras.layers.Flatten()(each) for each in layer(inputs).values()]
    model = keras.Model(inputs, keras.layers.Concatenate()(outputs))
    model.compile(keras.optimizers.Adagrad(0.5), "mse")
    return model, layer


def trained(model):
    ids = np.random.default_rng(0).integers(-9, 9, [40, 2])
    x = dict.fromkeys(tables_of(), ids)
    model.fit(x, np.ones([40, 10]), batch_size=8, shuffle=False, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("unseen", ["zeros", pytest.param("initial", marks=pytest.mark.slow)])
def test_a_saved_model_needs_tensorflow_alone(tmp_path, unseen):
    model, layer = model_of(unseen)
    trained(model)
    assert layer.statistics()["full"]["shared"] > 0
    ids = np.array([[-(2**63), 2**63 - 1], [3, 100], [-9, 8], [0, 0]])
    expected = model.predict(dict.fromkeys(tables_of(), ids), verbose=0)
    assert (expected[0, :7] == 0).all() == (unseen == "zeros")
    model.export(tmp_path / "served", verbose=False)
    np.savez(tmp_path / "expected.npz", ids=ids, expected=expected)
    command = [sys.executable, "-c", LOADED, tmp_path / "served", tmp_path / "expected.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "passed\n", done.stderr
    names = [
        name for name, _ in tf.train.list_variables(str(tmp_path / "served/variables/variables"))
    ]
    assert len([name for name in names if "table-values" in name]) == 4
    assert not [name for name in names if "py_state" in name], "rows are there twice"


@pytest.mark.slow
def test_tables_with_optimizers_and_shared_rows_are_saved_and_go_on(tmp_path):
    model, layer = model_of("initial")
    trained(model)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    twin = again.get_layer("tables")
    assert twin.get_config() == layer.get_config()
    assert int(twin.table_optimizers["own"].iterations) == 5
    trained(model)
    trained(again)
    x = dict.fromkeys(tables_of(), np.arange(-10, 10).reshape([10, 2]))
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.save(tmp_path / "checkpoint")
    before = layer.rows("own")[1]
    trained(model)
    assert not np.array_equal(layer.rows("own")[1], before)
    checkpoint.restore(path).assert_consumed()
    np.testing.assert_array_equal(layer.rows("own")[1], before)
    assert int(layer.table_optimizers["own"].iterations) == 10


@pytest.mark.in_turn
@pytest.mark.parametrize("api", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_features_that_share_a_table_are_saved(tmp_path, api):
    kind = DistributedEmbedding if api is keras else tf_keras_layer.DistributedEmbedding
    initializer, optimizer = api.initializers.RandomNormal(0.0, 0.1), api.optimizers.SGD(0.5)
    table = TableConfig("t", 2, embeddings_initializer=initializer, optimizer=optimizer)
    inputs = {name: api.Input([1], dtype="int64", name=name) for name in ("a", "b", "c")}
    layer = kind(features=dict.fromkeys(inputs, FeatureConfig(table, "sum")), name="tables")
    model = api.Model(inputs, api.layers.Add()(list(layer(inputs).values())))
    model.compile("adagrad", "mse")
    ids = dict.fromkeys(inputs, np.array([[1], [2]]))
    model.fit(ids, np.ones([2, 1]), verbose=0)
    model.save(tmp_path / "model.keras")
    again = api.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(ids, verbose=0), model.predict(ids, verbose=0))


def test_tables_with_optimizers_are_trained_where_the_model_has_no_other_weight():
    layer = DistributedEmbedding(1, optimizer=keras.optimizers.SGD(0.5), name="t",
                                 embeddings_initializer="zeros")  # fmt: skip
    inputs = keras.Input([1], dtype="int64")
    model = keras.Model(inputs, keras.layers.Flatten()(layer(inputs)))
    model.compile(keras.optimizers.Adam(1.0, epsilon=1e-7), "mse")
    model.fit(np.array([[1], [2]]), np.array([[1.0], [3.0]]), verbose=0)
    # The gradient of a mean of two squares: -(1, 3).
    np.testing.assert_allclose(layer(np.array([1, 2, 4]))[:, 0], [0.5, 1.5, 0.0])
    assert [float(each) for each in model.trainable_variables] == [0.0], "the lead moved"


@pytest.mark.slow
def test_tf_keras_saves_what_it_can_load_again(tmp_path):
    inputs = tf_keras.Input([2], dtype="int64")
    layer = tf_keras_layer.DistributedEmbedding(3, name="t", embeddings_initializer="normal")
    outputs = tf_keras.layers.Dense(1)(tf_keras.layers.Flatten()(layer(inputs)))
    model = tf_keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    model.fit(np.arange(8).reshape([4, 2]), np.ones([4, 1]), verbose=0)
    ids = np.array([[1, 2], [7, 50]])
    expected = model.predict(ids, verbose=0)
    with pytest.raises(ValueError, match="ends in '.keras', which load_model restores; to"):
        model.save(tmp_path / "saved")
    model.save(tmp_path / "model.keras")
    again = tf_keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(ids, verbose=0), expected)
    # In the process that has the layer, whose optimizer's variables have the same names.
    tf.saved_model.save(model, str(tmp_path / "served"))
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served(tf.constant(ids)), expected, atol=1e-6)
    assert len(served.optimizer.variables) == len(model.optimizer.variables)


@pytest.mark.parametrize("pieces", [1, 3])
def test_parquet_files(tmp_path, monkeypatch, pieces):
    layer = DistributedEmbedding(2, name="table", embeddings_initializer="normal")
    ids = np.array([2**63 - 1, -(2**63), 0, 7, -7])
    layer(ids, training=True)
    in_pieces_of(monkeypatch, layer, -(-len(ids) // pieces))
    layer.export_rows(str(tmp_path / "rows"), format="parquet")
    other = DistributedEmbedding(2, name="other", embeddings_initializer="zeros")
    other.build(None)
    other.import_rows(str(tmp_path / "rows"))
    for found, expected in zip(other.rows(), layer.rows(), strict=True):
        np.testing.assert_array_equal(found, expected)
    (file,) = (tmp_path / "rows").iterdir()
    assert parquet.ParquetFile(file).num_row_groups == pieces
    # What another system writes: lists of any length, numbers of other sizes.
    (tmp_path / "foreign").mkdir()
    columns = {"value": [[1.0, 2.0], [3.0, 4.0]], "key": pyarrow.array([3, -3], pyarrow.int32())}
    parquet.write_table(pyarrow.table(columns), tmp_path / "foreign" / "x.parquet")
    other.import_rows(str(tmp_path / "foreign"))
    np.testing.assert_array_equal(other(np.array([-3, 3, 0]))[:2], [[3, 4], [1, 2]])


@pytest.mark.parametrize("prefix", ["", "part-1-", "monkeys-"])
def test_npy_files_of_another_system(tmp_path, prefix):
    np.save(tmp_path / f"{prefix}keys.npy", np.array([3, -3]))
    np.save(tmp_path / f"{prefix}values.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    layer = DistributedEmbedding(2)
    layer.build(None)
    layer.import_rows(str(tmp_path))
    np.testing.assert_array_equal(layer.rows()[1], [[3, 4], [1, 2]])


def in_pieces_of(monkeypatch, layer, rows):
    """Lets rows be moved in pieces of so many."""
    size = layer._require_tables().table(None).store.row_bytes() * rows
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", size)
    monkeypatch.setattr(npy_stream, "_CHUNK_BYTES", size)


def test_parquet_without_pyarrow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    layer = DistributedEmbedding(2)
    layer.build(None)
    with pytest.raises(ImportError, match=r"pip install 'keras-strategies\[parquet\]'"):
        layer.export_rows(str(tmp_path / "rows"), format="parquet")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "Received: .*, which contains neither"),
        ({"keys.npy": [1]}, "'keys.npy' without 'values.npy'"),
        ({"keys.npy": [1, 1], "values.npy": [[1.0, 2.0]] * 2}, "1 of them distinct"),
        ({"keys.npy": [0.5], "values.npy": [[1.0, 2.0]]}, "Received: float64"),
        ({"keys.npy": [1], "values.npy": [[1.0, 2.0, 3.0]]}, "shape .1, 3. for 1 keys"),
        ({"part-00000-of-00002-keys.npy": [1]}, "All parts of an export must be"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, files, message):
    for name, array in files.items():
        np.save(tmp_path / name, np.array(array))
    layer = DistributedEmbedding(2)
    layer.build(None)
    with pytest.raises(ValueError, match=message):
        layer.import_rows(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"overflow": "wrap"},
            "overflow must be one of 'error', 'share', 'evict'. Received: 'wrap'",
        ),
        ({"overflow": "share"}, "Received: overflow='share' without input_dim"),
        ({"optimizer": "sgd", "dtype": "mixed_float16"}, "Use mixed_bfloat16 or float32"),
    ],
)
def test_options_without_a_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DistributedEmbedding(2, **options)
