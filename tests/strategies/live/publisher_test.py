"""A served model that follows the training serves what the trained model predicts, to the bit."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies import DistributedEmbedding, Eviction
from strategies.follow import Follower
from strategies.live import delta_folder
from tests.support.check_jobs import checks_of
from tests.support.live import ServedSession, Trained

pytestmark = pytest.mark.training
SLOW = pytest.mark.slow

# Only TensorFlow and NumPy: what a serving process without this package does.
WITHOUT_THIS_PACKAGE = """
import json, sys
from pathlib import Path
import numpy as np
sys.modules["strategies"] = None  # an import of it raises an error
import tensorflow as tf
served, deltas, file = sys.argv[1:]
model = tf.saved_model.load(served)
version = model.signatures["version"]()
contents = json.loads(version["contents"].numpy())
for folder in sorted(Path(deltas).glob("0*")):
    header = json.loads((folder / "delta.json").read_text())
    assert header["contents"] == version["contents"].numpy().decode()
    inputs = {name: tf.constant(header[name], tf.int64) for name in ("chain", "number")}
    for table in range(len(contents["tables"])):
        def load(key):
            path = folder / f"table{table}-worker0-{key}.npy"
            return np.load(path) if path.exists() else None
        present, removed = load("present_ids"), load("removed")
        none = np.zeros([0], np.int64)
        inputs |= {
            f"table{table}_ids": load("ids"),
            f"table{table}_rows": load("rows"),
            f"table{table}_removed": none if removed is None else removed,
            f"table{table}_present": none if present is None else present,
            f"table{table}_retains": np.bool_(present is not None),
        }
    inputs |= np.load(folder / "variables.npz")
    model.signatures["update"](**{name: tf.constant(each) for name, each in inputs.items()})
with np.load(file) as expected:
    test = {name: tf.constant(expected[name]) for name in expected if name != "expected"}
    np.testing.assert_array_equal(model.serve(test), expected["expected"])
print("passed")
"""


class Served:
    """What `Trained` was exported to: loaded, in a session, and with the deltas so far."""

    def __init__(self, trained, directory):
        self.path, self.deltas = directory / "served", directory / "deltas"
        self._trained = trained
        strategies.export(trained.model, self.path)
        self.follower = Follower(self.path, self.deltas)
        self._session = ServedSession(self.path)

    def update(self):
        """Exports a delta and applies it."""
        folder = Path(strategies.export_delta(self._trained.model, self.deltas))
        number = int(folder.name)
        assert self.follower.update() == [number]
        version = self._session.run("version", {})
        delta = delta_folder.Delta(int(version["chain"]), number, version["contents"].decode())
        done = self._session.run("update", delta_folder.read(folder, delta))
        assert done["number"] == number
        return folder

    def check(self):
        expected = self._trained.predictions()
        found = self._trained.served_predictions(self.follower.model)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(self._session.predictions(self._trained.test), expected)


@pytest.mark.parametrize("api", ["keras", pytest.param("tf_keras", marks=SLOW)])
def test_what_is_served_is_what_the_trained_model_predicts(tmp_path, api):
    trained = Trained(api)
    trained.fit()
    served = Served(trained, tmp_path)
    served.check()
    evicted = 0
    for _ in range(5):
        before = trained.predictions()
        trained.fit()
        evicted += trained.layer.evict()["users"]
        served.update()
        served.check()
        assert not np.array_equal(trained.predictions(), before)
    assert evicted > 20
    statistics = trained.layer.statistics()
    assert statistics["items"]["evicted"] > 20
    assert statistics["pages"]["evicted"] > 20
    assert statistics["words"]["shared"] > 20
    if api == "keras":
        expected = tmp_path / "expected.npz"
        np.savez(expected, expected=trained.predictions(), **trained.test)
        command = [sys.executable, "-c", WITHOUT_THIS_PACKAGE, served.path, served.deltas, expected]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == "passed\n", done.stderr


def table_and_model(width=2, **options):
    """Returns a layer with one table, and a model of it."""
    layer = DistributedEmbedding(width, name="table", combiner="sum", **options)
    inputs = keras.Input([None], dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1, name="dense")(layer(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return layer, model


def fit(model, ids):
    ids = np.reshape(ids, [1, -1])
    model.fit(ids, np.ones([1, 1]), verbose=0)


def arrays_of(folder):
    """Returns the arrays of the only table in a delta of one worker."""
    files = Path(folder).glob("table0-worker0-*.npy")
    return {path.stem.rpartition("-")[2]: np.load(path) for path in files}


def exported(tmp_path, **options):
    """Returns a layer and a model that has been trained on the ids 0 to 9 and exported."""
    layer, model = table_and_model(**options)
    fit(model, np.arange(10))
    strategies.export(model, tmp_path / "served")
    return layer, model


def test_a_delta_has_the_ids_that_were_trained_on_and_removed(tmp_path):
    layer, model = exported(tmp_path, eviction=Eviction(age=3))
    fit(model, [1, 2, 20])
    first = arrays_of(strategies.export_delta(model, tmp_path / "deltas"))
    assert sorted(first["ids"].tolist()) == [1, 2, 20]
    assert first["removed"].tolist() == []
    fit(model, [1, 30])
    fit(model, [1, 30])
    layer.evict()  # 0 and 3 to 9 are 3 steps old
    fit(model, [3, 30])  # this one has a row again
    second = arrays_of(strategies.export_delta(model, tmp_path / "deltas"))
    assert sorted(second["ids"].tolist()) == [1, 3, 30]
    # 9 ids were removed, and 5 have a row: the list of these is the shorter one.
    assert sorted(second["present_ids"].tolist()) == [1, 2, 3, 20, 30]
    fit(model, [1, 3, 30])
    layer.evict()
    third = arrays_of(strategies.export_delta(model, tmp_path / "deltas"))
    assert sorted(third["ids"].tolist()) == [1, 3, 30]
    assert sorted(third["removed"].tolist()) == [2, 20]
    fourth = arrays_of(strategies.export_delta(model, tmp_path / "deltas"))
    assert not len(fourth["ids"])
    assert not len(fourth["removed"])


def set_rows(layer, model, directory):
    layer.set_rows(np.array([3]), np.array([[7.0, 7.0]]))


def load_rows(layer, model, directory):
    layer.save_rows(str(directory / "rows"))
    fit(model, [50])
    layer.load_rows(str(directory / "rows"))


def set_weights(layer, model, directory):
    weights = model.get_weights()
    fit(model, [50])
    model.set_weights(weights)


def load_weights(layer, model, directory):
    model.save_weights(directory / "model.weights.h5")
    fit(model, [50])
    model.load_weights(directory / "model.weights.h5")


def import_rows(layer, model, directory):
    np.save(directory / "keys.npy", np.array([3, 60]))
    np.save(directory / "values.npy", np.ones([2, 2], np.float32))
    layer.import_rows(str(directory))


@pytest.mark.in_turn
@pytest.mark.parametrize("replace", [set_rows, load_rows, set_weights, load_weights, import_rows])
def test_all_rows_are_written_if_rows_changed_other_than_by_training(tmp_path, replace):
    layer, model = exported(tmp_path)
    fit(model, [40])
    follower = Follower(tmp_path / "served", tmp_path / "deltas")
    strategies.export_delta(model, tmp_path / "deltas")
    fit(model, [41])
    (tmp_path / "files").mkdir()
    replace(layer, model, tmp_path / "files")
    arrays = arrays_of(strategies.export_delta(model, tmp_path / "deltas"))
    ids, rows = layer.rows()
    order = np.argsort(arrays["ids"])
    np.testing.assert_array_equal(arrays["ids"][order], ids)
    np.testing.assert_array_equal(arrays["rows"][order], rows)
    np.testing.assert_array_equal(arrays["present_ids"][order], ids)
    fit(model, [1])
    folder = strategies.export_delta(model, tmp_path / "deltas")
    assert arrays_of(folder)["ids"].tolist() == [1]
    assert follower.update() == [1, 2, 3]
    test = np.arange(62).reshape([62, 1])
    expected = model.predict(test, batch_size=62, verbose=0)
    np.testing.assert_array_equal(follower.model.serve(test), expected)


def size_of(folder):
    return sum(path.stat().st_size for path in Path(folder).iterdir())


@SLOW
def test_the_size_of_a_delta_follows_the_touched_rows(tmp_path):
    width = 8
    _, model = table_and_model(width, eviction=Eviction(age=10**6))
    fit(model, np.arange(20_000))
    strategies.export(model, tmp_path / "served")
    sizes = []
    for touched in (10, 1010):
        fit(model, np.arange(touched))
        sizes.append(size_of(strategies.export_delta(model, tmp_path / "deltas")))
    # The files of tables are aligned, and numbers in the JSON files have other lengths.
    assert abs(sizes[1] - sizes[0] - 1000 * (8 + 4 * width)) < 64
    assert sizes[0] < 10 * (8 + 4 * width) + 4096, "20,000 ids take 160,000 bytes"


@SLOW
def test_two_models_of_one_layer_have_chains_of_their_own(tmp_path):
    layer, model = exported(tmp_path, eviction=Eviction(age=2))
    other = keras.Model(model.input, keras.ops.tanh(model.output))
    strategies.export(other, tmp_path / "other")
    followers = []
    for one, name in ((model, "served"), (other, "other")):
        followers.append((one, Follower(tmp_path / name, tmp_path / f"{name}_deltas")))
    test = np.arange(40).reshape([40, 1])
    for turn in range(3):
        for number, (one, follower) in enumerate(followers):
            fit(model, [turn, 10 + turn + number])
            fit(model, [turn])
            layer.evict()
            strategies.export_delta(one, follower._directory)
            follower.update()
            expected = one.predict(test, batch_size=40, verbose=0)
            np.testing.assert_array_equal(follower.model.serve(test), expected)


@SLOW
def test_rows_and_weights_in_16_bits_are_followed(tmp_path):
    layer = DistributedEmbedding(2, name="table", combiner="sum", row_dtype="bfloat16")
    inputs = keras.Input([None], dtype="int64")
    dense = keras.layers.Dense(1, name="dense", dtype="bfloat16")
    model = keras.Model(inputs, keras.ops.cast(dense(layer(inputs)), "float32"))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    strategies.export(model, tmp_path / "served")
    follower = Follower(tmp_path / "served", tmp_path / "deltas")
    test = np.arange(40).reshape([40, 1])
    for turn in range(2):
        fit(model, [turn, 10, 20])
        strategies.export_delta(model, tmp_path / "deltas")
        assert follower.update() == [turn + 1]
        expected = model.predict(test, batch_size=40, verbose=0)
        np.testing.assert_array_equal(follower.model.serve(test), expected)


def test_a_model_without_tables_is_followed(tmp_path):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    strategies.export(model, tmp_path / "served")
    model.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)
    strategies.export_delta(model, tmp_path / "deltas")
    follower = Follower(tmp_path / "served", tmp_path / "deltas")
    follower.update()
    np.testing.assert_array_equal(follower.model.serve(np.ones([4, 2])), model(np.ones([4, 2])))


def test_a_job_that_was_restarted_goes_on_with_the_deltas_of_the_directory(tmp_path):
    layer, model = exported(tmp_path)
    layer.save_rows(str(tmp_path / "rows"))
    dense = model.get_layer("dense").get_weights()
    fit(model, [1, 60])
    strategies.export_delta(model, tmp_path / "deltas")
    follower = Follower(tmp_path / "served", tmp_path / "deltas")
    assert follower.update() == [1]
    keras.backend.clear_session()
    layer, model = table_and_model()
    layer.load_rows(str(tmp_path / "rows"))
    model.get_layer("dense").set_weights(dense)
    fit(model, [2])
    folder = strategies.export_delta(model, tmp_path / "deltas")
    assert Path(folder).name == "000002"
    assert follower.update() == [2]
    test = np.arange(70).reshape([70, 1])
    expected = model.predict(test, batch_size=70, verbose=0)
    np.testing.assert_array_equal(follower.model.serve(test), expected)


def test_what_cannot_be_exported(tmp_path):
    with pytest.raises(TypeError, match="must be a model of Keras 3 or tf_keras. Received: Dense"):
        strategies.export(keras.layers.Dense(1), tmp_path / "served")
    _, model = table_and_model()
    with pytest.raises(ValueError, match="must be exported before its deltas"):
        strategies.export_delta(model, tmp_path / "deltas")
    strategies.export(model, tmp_path / "served")
    strategies.export_delta(model, tmp_path / "deltas")
    strategies.export(model, tmp_path / "served")
    with pytest.raises(ValueError, match="can only have the deltas of one export"):
        strategies.export_delta(model, tmp_path / "deltas")
    _, other = table_and_model(3)
    with pytest.raises(ValueError, match="must have the same tables and variables"):
        strategies.export_delta(other, tmp_path / "deltas")


def test_a_delta_that_could_not_be_written_is_in_the_next_one(tmp_path, monkeypatch):
    _, model = exported(tmp_path)
    fit(model, [1])
    with monkeypatch.context() as patch:
        patch.setattr(delta_folder, "write_variables", lambda *_: (_ for _ in ()).throw(
            OSError(28, "No space left on device")))  # fmt: skip
        with pytest.raises(OSError, match="A delta cannot be saved.*No space left.*Free some"):
            strategies.export_delta(model, tmp_path / "deltas")
    assert list((tmp_path / "deltas").iterdir()) == []
    fit(model, [2])
    folder = strategies.export_delta(model, tmp_path / "deltas")
    assert sorted(arrays_of(folder)["ids"].tolist()) == [1, 2]
    assert Path(folder).name == "000001"


@SLOW
def test_a_subclass_of_tf_keras_model_is_exported(tmp_path):
    class Model(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf_keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(inputs)

    model = Model()
    with pytest.raises(ValueError, match="built|called"):
        strategies.export(model, tmp_path / "served")
    x = tf.ones([2, 3])
    model.compile("sgd", "mse")
    model.fit(x, tf.ones([2, 1]), verbose=0)
    strategies.export(model, tmp_path / "served")
    model.fit(x, tf.ones([2, 1]), verbose=0)
    strategies.export_delta(model, tmp_path / "deltas")
    follower = Follower(tmp_path / "served", tmp_path / "deltas")
    follower.update()
    np.testing.assert_array_equal(follower.model.serve(x), model.predict(x, verbose=0))


@pytest.mark.parametrize(
    ("api", "mode", "workers", "ps", "replicas"),
    [
        pytest.param("keras", "sync", 1, 0, 2, marks=SLOW),
        pytest.param("keras", "sync", 2, 0, 1, marks=SLOW),
        pytest.param("tf_keras", "sync", 2, 0, 2, marks=SLOW),
        pytest.param("keras", "sync", 2, 2, 1, marks=SLOW),
        pytest.param("keras", "async", 2, 2, 1, marks=SLOW),
        pytest.param("keras", "half_async", 2, 1, 1, marks=SLOW),
        pytest.param("tf_keras", "geo", 2, 2, 1, marks=SLOW),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "live_updates.py",
        slow=["a_damaged_delta_is_refused", "a_directory_has_the_deltas_of_one_export"],
    ),
)
def test_a_served_model_follows_several_workers(run_check, check, api, mode, workers, ps, replicas):
    run_check(check, api, mode, replicas, workers=workers, ps=ps)
