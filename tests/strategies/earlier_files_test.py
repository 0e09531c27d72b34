"""Files that earlier versions of this package wrote load as they did; earlier_files/write.py."""

import importlib
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

import strategies

pytestmark = pytest.mark.training

FILES = Path(__file__).resolve().parent.parent / "earlier_files"
IDS = np.array([[5], [-7], [2**62], [5], [11], [-7]], np.int64)


@pytest.fixture(params=[(version.name, api) for version in FILES.glob("[0-9]*") for api in
                        ("keras", "tf_keras")], ids="-".join)  # fmt: skip
def written(request, tmp_path):
    """Keras, and a copy of what was written with it."""
    version, api = request.param
    shutil.copytree(FILES / version / api, tmp_path / "written")
    importlib.import_module(f"strategies.embedding.{api}_layer")
    return importlib.import_module(api), tmp_path / "written"


def new_model(keras):
    layers = importlib.import_module(f"strategies.embedding.{keras.__name__}_layer")
    inputs = keras.Input([1], dtype="int64", name="ids")
    layer = layers.DistributedEmbedding(
        2, name="embedding", admission=strategies.Admission(1), input_dim=100
    )
    outputs = keras.layers.Dense(1, name="dense")(keras.layers.Flatten()(layer(inputs)))
    return keras.Model(inputs, outputs)


def train(model):
    labels = np.arange(6, dtype="float32")[:, None]
    model.fit(tf.data.Dataset.from_tensor_slices((IDS, labels)).batch(2), verbose=0, shuffle=False)


def check(model, path):
    """Compares rows and predictions with what was written beside the files."""
    with np.load(path) as expected:
        ids, rows = model.get_layer("embedding").rows()
        np.testing.assert_array_equal(ids, expected["ids"])
        np.testing.assert_allclose(rows, expected["rows"], rtol=1e-6)
        found = model.predict(IDS, verbose=0)
        np.testing.assert_allclose(found, expected["predictions"], rtol=1e-5)


def version_of_writer(path):
    """Returns the version of Keras or tf_keras that wrote a model."""
    with zipfile.ZipFile(path) as archive:
        return Version(json.loads(archive.read("metadata.json"))["keras_version"])


@pytest.mark.in_turn
def test_a_model(written):
    keras, directory = written
    writer = version_of_writer(directory / "model.keras")
    if Version(keras.__version__) < writer:
        pytest.skip(
            f"{keras.__name__} {keras.__version__} does not read models of {writer}, whose stock "
            "layers have more arguments (InputLayer's optional, Dense's quantization_config)"
        )
    model = keras.models.load_model(directory / "model.keras")
    check(model, directory / "expected.npz")
    train(model)
    check(model, directory / "later.npz")


@pytest.mark.in_turn
def test_a_checkpoint(written):
    keras, directory = written
    model = new_model(keras)
    model.compile(keras.optimizers.Adam(0.1), "mse")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.read(str(directory / "checkpoint"))
    train(model)
    check(model, directory / "later.npz")


def test_rows(written):
    keras, directory = written
    model = new_model(keras)
    layer = model.get_layer("embedding")
    layer.load_rows(str(directory / "rows"))
    saved = layer.rows()
    layer.import_rows(str(directory / "plain"))
    with np.load(directory / "expected.npz") as expected:
        for ids, rows in (saved, layer.rows()):
            np.testing.assert_array_equal(ids, expected["ids"])
            np.testing.assert_array_equal(rows, expected["rows"])


@pytest.mark.parametrize("written", [("0.1.0", "keras")], indirect=True, ids=["0.1.0"])
def test_weights_and_a_saved_model(written):
    keras, directory = written
    model = new_model(keras)
    model.load_weights(directory / "model.weights.h5")
    check(model, directory / "expected.npz")
    served = tf.saved_model.load(directory / "saved_model")
    with np.load(directory / "expected.npz") as expected:
        found = served.serve(tf.constant(IDS)).numpy()
        np.testing.assert_allclose(found, expected["predictions"], rtol=1e-5)
