"""DistributedEmbedding in models as people write them, where a stock Embedding works as well."""

import contextlib
import importlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies import Admission, DistributedEmbedding, FeatureConfig, TableConfig
from tests.support.check_jobs import checks_of
from tests.support.embeddings import embedding_of

pytestmark = pytest.mark.training

APIS = ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)]
IDS = np.arange(1, 33).reshape([8, 4])
LABELS = (np.arange(8) % 2).astype("float32")[:, None]


def api_of(name):
    return importlib.import_module(name), embedding_of(name)


def plain(k, embedding, *heads):
    """Returns a model whose `call` has no `training`."""

    class Plain(k.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.heads = embedding, heads

        def call(self, ids):
            x = self.embedding(ids)
            for head in self.heads:
                x = head(x)
            return x

    return Plain()


def called_in(model, around, training):
    def called(ids):
        with around():
            return model(ids, training=training)

    return called


@contextlib.contextmanager
def stopped():
    with tf.GradientTape() as tape, tape.stop_recording():
        yield


# Around the call, what it is given, and whether ids get rows.
CONTEXTS = [
    (contextlib.nullcontext, None, False),
    (contextlib.nullcontext, True, True),
    (tf.GradientTape, None, True),
    (tf.GradientTape, True, True),
    (tf.GradientTape, False, False),
    (lambda: tf.GradientTape(persistent=True), None, True),
    (lambda: tf.GradientTape(watch_accessed_variables=False), None, False),
    (stopped, None, False),
]


@pytest.mark.each_value
@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("in_function", [False, True])
def test_ids_get_rows_where_a_tape_records(name, in_function):
    k, embedding = api_of(name)
    layer = embedding(2)
    model = k.Sequential([k.Input([4], dtype="int64"), layer])
    count = 0
    for number, (around, training, gets_rows) in enumerate(CONTEXTS):
        call = called_in(model, around, training)
        call = tf.function(call, autograph=False) if in_function else call
        call(tf.constant(IDS + 100 * number))
        count += gets_rows * IDS.size
        assert len(layer.rows()[0]) == count, number
    layer.trainable = False
    with tf.GradientTape():
        layer(IDS - 100)
    assert len(layer.rows()[0]) == count


@pytest.mark.parametrize("name", APIS)
def test_a_persistent_tape_and_one_that_watches_the_table_alone(name):
    layer = api_of(name)[1](2, embeddings_initializer="zeros")
    layer.build()
    for options in ({"persistent": True}, {"watch_accessed_variables": False}):
        with tf.GradientTape(**options) as tape:
            (weight,) = layer.trainable_variables
            tape.watch(getattr(weight, "value", weight) if name == "keras" else weight)
            output = layer(IDS)
        gradient = tape.gradient(output, layer.trainable_variables)[0]
        np.testing.assert_array_equal(gradient.values, np.ones([IDS.size, 2]))


def test_a_function_between_tape_and_layer_says_that_training_must_be_given():
    layer = DistributedEmbedding(2, combiner="sum")
    layer.build()
    ids = tf.constant(IDS)
    for before in (False, True):
        function = tf.function(lambda ids, training=None: layer(ids, training=training))
        if before:  # the trace without a tape would serve the call under one
            function(ids)
        with pytest.raises(ValueError, match="calls the layer. Call the layer or the model with"):
            with tf.GradientTape() as tape:
                output = function(ids)
            tape.gradient(output, layer.trainable_variables)
        assert len(layer.rows()[0]) == 0
    with tf.GradientTape() as tape:
        output = function(ids, training=False)
    assert tape.gradient(output, layer.trainable_variables) == [None]
    with tf.GradientTape() as tape:
        output = function(ids, training=True)
    (gradient,) = tape.gradient(output, layer.trainable_variables)
    assert gradient.values.shape[0] == len(layer.rows()[0]) == IDS.size
    with pytest.raises(ValueError, match="training must be True, False or None while a function"):
        tf.function(layer)(ids, training=tf.constant(True))


@pytest.mark.parametrize("training", [None, True])
@pytest.mark.parametrize("in_function", [False, True])
def test_a_call_that_the_backward_pass_repeats_is_refused(training, in_function):
    """Without `training`, its rows would not be trained; with it, its ids would count twice."""
    layer = DistributedEmbedding(2, combiner="sum")
    layer.build()

    def gradient(training):
        with tf.GradientTape() as tape:
            output = keras.remat(lambda ids: layer(ids, training=training))(tf.constant(IDS))
        return tape.gradient(output, layer.trainable_variables)

    gradient = tf.function(gradient) if in_function else gradient
    with pytest.raises(ValueError, match="would repeat the lookup .* Received: such a call"):
        gradient(training)
    assert len(layer.rows()[0]) == 0
    assert gradient(False) == [None]


@pytest.mark.parametrize(
    "around",
    [
        lambda call, ids: tf.cond(tf.reduce_sum(ids) > 0, lambda: call(ids), lambda: -call(ids)),
        lambda call, ids: tf.map_fn(call, ids, fn_output_signature=tf.TensorSpec([4, 2])),
    ],
    ids=["cond", "map_fn"],
)
def test_a_lookup_in_a_branch_or_loop_with_a_gradient_from_outside_is_refused(around):
    layer = DistributedEmbedding(2)
    layer.build()

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            output = around(lambda ids: layer(ids, training=True), ids)
        return tape.gradient(output, layer.trainable_variables)

    with pytest.raises(ValueError, match="Received: a lookup in a branch or loop, and a gradient"):
        gradient(tf.constant(IDS))


@pytest.mark.each_value
@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("options", [{}, {"admission": Admission(2)}, {"optimizer": "sgd"}])
def test_fit_trains_in_a_model_that_is_not_told_of_training(eagerly, options):
    model = plain(
        keras, DistributedEmbedding(1, embeddings_initializer="zeros", combiner="sum", **options)
    )
    model.compile("sgd", "mse", run_eagerly=eagerly)
    model.evaluate(IDS, LABELS, verbose=0)
    losses = model.fit(IDS, LABELS, epochs=4, verbose=0, batch_size=8).history["loss"]
    model.evaluate(-IDS, LABELS, verbose=0)
    model.predict(-IDS, verbose=0)
    model(-IDS)
    # A step moves the sum of 4 rows of a label of 1 by 4 * 0.01 * 2 / 8 of what it lacks.
    steps = np.arange(4) if "admission" not in options else np.array([0, 0, 1, 2])
    np.testing.assert_allclose(losses, 0.5 * 0.99 ** (2 * steps), rtol=1e-5)
    assert model.embedding.rows()[0].tolist() == IDS.ravel().tolist()
    assert model.embedding.statistics()[model.embedding.name]["lookups"] == 4 * IDS.size


def test_two_replicas_and_a_loop_of_ones_own():
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = plain(
            keras, DistributedEmbedding(1, embeddings_initializer="zeros", combiner="sum")
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    first = model.fit(IDS, LABELS, batch_size=8, verbose=0, shuffle=False).history["loss"]

    def replica(ids, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(ids) - labels) ** 2) / 8
        (gradient,) = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients([(gradient, model.trainable_variables[0])])
        return loss

    step = tf.function(lambda *batch: strategy.run(replica, args=batch))
    data = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(8)
    for batch in strategy.experimental_distribute_dataset(data):
        second = strategy.reduce("SUM", step(*batch), axis=None)
    model.evaluate(-IDS, LABELS, batch_size=8, verbose=0)
    assert first == [0.5]
    # One step moves the sum of 4 rows of each label of 1 by 4 * 0.1 * 2 / 8.
    np.testing.assert_allclose(second, 0.5 * 0.9**2, rtol=1e-5)
    assert model.embedding.rows()[0].tolist() == IDS.ravel().tolist()


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ids_in_floating_point_are_exact_or_refused(dtype):
    bound = {"float16": 2**11, "float32": 2**24, "float64": 2**53}[dtype]
    # In float32 or less, ids of float64 would be others.
    layer = DistributedEmbedding(2, embeddings_initializer="normal", dtype="mixed_bfloat16")
    right = np.array([0, -3, bound - 1, 1 - bound])
    np.testing.assert_array_equal(layer(right.astype(dtype)), layer(right))
    function = tf.function(layer)
    np.testing.assert_array_equal(function(tf.constant(right, dtype)), layer(right))
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant(right, dtype), [1, 3])
    np.testing.assert_array_equal(layer(ragged).flat_values, layer(right))
    for wrong in (bound, -bound, 0.5, float("nan"), float("inf")):
        message = f"whole numbers of {dtype} between -{bound} and {bound}, .* Received:"
        with pytest.raises(ValueError, match=message):
            layer(np.array([wrong, 1.0], dtype), training=True)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            function(tf.constant([wrong, 1.0], dtype), training=True)
    assert len(layer.rows()[0]) == 0


def test_models_that_begin_with_float32():
    model = keras.Sequential(
        [DistributedEmbedding(1, embeddings_initializer="zeros"), keras.layers.Flatten()]
    )
    model.compile("sgd", "mse")
    model.fit(IDS, LABELS, verbose=0)
    model.predict(IDS - 2**24 + 40, verbose=0)
    ids = keras.Input([4])
    other = keras.Model(ids, model.layers[0](ids))
    np.testing.assert_array_equal(other.predict(IDS, verbose=0), model.layers[0](IDS))
    assert model.layers[0].rows()[0].tolist() == IDS.ravel().tolist()
    for each in (model, other):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="a Sequential model without a keras.Input"
        ):
            each.predict(IDS + 2**24, verbose=0)


@pytest.mark.parametrize("name", APIS)
def test_a_loaded_subclassed_model_goes_on(name, tmp_path):
    k, embedding = api_of(name)

    class Saved(k.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.embedding, self.out = embedding(2, combiner="sum"), k.layers.Dense(1)

        def call(self, ids):
            return self.out(self.embedding(ids))

        def get_config(self):
            return {}

    model = Saved()
    model.compile(k.optimizers.Adam(0.1), "mse")
    model.fit(IDS, LABELS, epochs=2, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    again = k.models.load_model(tmp_path / "model.keras", custom_objects={"Saved": Saved})
    assert int(again.optimizer.iterations.numpy()) == 2
    losses = [
        each.fit(IDS, LABELS, epochs=2, verbose=0, shuffle=False).history["loss"]
        for each in (model, again)
    ]
    np.testing.assert_array_equal(*losses)
    np.testing.assert_array_equal(model.embedding.rows()[1], again.embedding.rows()[1])
    np.testing.assert_array_equal(model.out.get_weights()[0], again.out.get_weights()[0])


def test_output_shapes_are_told_beforehand():
    assert DistributedEmbedding(2).compute_output_shape((None, 5)) == (None, 5, 2)
    assert DistributedEmbedding(2, combiner="mean").compute_output_shape((None, 5)) == (None, 2)
    table = TableConfig("table", 3)
    features = {"a": FeatureConfig(table), "b": FeatureConfig(table, "sum")}
    layer = DistributedEmbedding(features=features)
    shapes = {"a": (7,), "b": (7, None, 4)}
    assert layer.compute_output_shape(shapes) == {"a": (7, 3), "b": (7, None, 3)}
    inputs = {each: keras.Input(shape[1:], 7) for each, shape in shapes.items()}
    outputs = layer(inputs)
    assert {each: output.shape for each, output in outputs.items()} == {
        "a": (7, 3),
        "b": (7, None, 3),
    }


@pytest.mark.in_turn
@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("form", ["functional", "sequential", "subclassed"])
def test_masks_reach_the_next_layer(name, form):
    k, embedding = api_of(name)
    padded = np.where(np.arange(4) <= np.arange(8)[:, None] % 4, IDS, 0)
    layer, head = embedding(2, mask_zero=True), k.layers.LSTM(2)
    if form == "functional":
        ids = k.Input([4], dtype="int64")
        model = k.Model(ids, head(layer(ids)))
    elif form == "sequential":
        model = k.Sequential([layer, head])
    else:
        model = plain(k, layer, head)
    found = model.predict(padded, verbose=0)
    # What the layer does without masks to ids alone, of any number.
    each = [head(layer(ids[ids > 0][None]))[0] for ids in padded]
    np.testing.assert_allclose(found, each, atol=1e-6)


def test_masks_of_features():
    table = TableConfig("table", 2)
    features = {"a": FeatureConfig(table, "sum"), "b": FeatureConfig(table)}
    layer = DistributedEmbedding(features=features, mask_zero=True)
    ids = {name: keras.Input([3], dtype="int64", name=name) for name in features}
    rows = layer(ids)
    assert getattr(rows["a"], "_keras_mask", None) is None
    assert rows["b"]._keras_mask.shape == (None, 3)
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(rows["b"]))
    found = model.predict({name: np.array([[5, 0, 7]]) for name in features}, verbose=0)
    expected = layer({"a": np.array([[1]]), "b": np.array([[5, 7]])})["b"]
    np.testing.assert_allclose(found, tf.reduce_mean(expected, 1), atol=1e-6)
    sparse = keras.Input([3], dtype="int64", sparse=True)
    assert DistributedEmbedding(2, combiner="sum", mask_zero=True)(sparse).shape == (None, 2)


LOADED = "assert model.layers[0].rows()[0].tolist() == list(range(1, 33))"
LOADING = {
    "keras": f"""
import sys
sys.modules["tf_keras"] = None
import strategies
import keras
model = keras.models.load_model("model.keras")
assert isinstance(model.optimizer, strategies.LossScaleOptimizer)
{LOADED}
""",
    "tf_keras": f"""
import strategies
import tf_keras
model = tf_keras.models.load_model("model.keras")
{LOADED}
""",
    "tf_keras, imported before": f"""
import tf_keras, strategies
model = tf_keras.models.load_model("model.keras")
{LOADED}
""",
    "tf_keras, as TensorFlow's": f"""
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import strategies
import tensorflow as tf
model = tf.keras.models.load_model("model.keras")
{LOADED}
""",
}


@pytest.mark.parametrize(
    "case",
    [
        "keras",
        pytest.param("tf_keras", marks=pytest.mark.slow),
        pytest.param("tf_keras, imported before", marks=pytest.mark.slow),
        pytest.param("tf_keras, as TensorFlow's", marks=pytest.mark.slow),
    ],
)
def test_importing_the_package_is_enough_to_load_a_model(case, tmp_path):
    name, _, _ = case.partition(",")
    k, embedding = api_of(name)
    optimizer = k.optimizers.SGD(0.1)
    if name == "keras":
        optimizer = strategies.LossScaleOptimizer(optimizer)
    model = k.Sequential([k.Input([4], dtype="int64"), embedding(1), k.layers.Flatten()])
    model.compile(optimizer, "mse")
    model.fit(IDS, LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    command = [sys.executable, "-c", LOADING[case]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "workers", "ps"),
    [
        ("keras", "none", 1, 0),
        ("keras", "cluster", 2, 1),
        ("tf_keras", "mirrored", 1, 0),
        ("tf_keras", "cluster", 2, 0),
    ],
)
@pytest.mark.parametrize("check", checks_of("embedding_models.py"))
def test_losses_are_those_of_stock_layers_under_every_strategy(
    run_check, check, name, kind, workers, ps
):
    run_check(check, name, kind, workers=workers, ps=ps, timeout=900)


WITHOUT_TRAINING = "a_subclassed_model_without_training_has_rows_in_fit_and_none_elsewhere"


@pytest.mark.slow
@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("check", checks_of("embedding_models.py", only=[WITHOUT_TRAINING]))
def test_rows_are_made_in_fit_alone_where_nobody_waits(run_check, check, name):
    run_check(check, name, "cluster", "async", ps=1, timeout=900)


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
@pytest.mark.parametrize("around", [tf.function, lambda function: function])
def test_a_checkpoint_may_be_restored_before_the_layer_is_built(tmp_path, name, around):
    layers = [api_of(name)[1](2, embeddings_initializer="normal", seed=seed) for seed in range(2)]
    expected = layers[0](IDS, training=True)
    path = tf.train.Checkpoint(layer=layers[0]).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(layer=layers[1]).restore(path)
    np.testing.assert_array_equal(around(lambda: layers[1](IDS, training=False))(), expected)


def test_a_checkpoint_may_be_restored_before_fit_builds_the_model(tmp_path):
    def model():
        made = plain(keras, DistributedEmbedding(1, combiner="sum"))
        made.compile(keras.optimizers.SGD(0.1), "mse")
        return made

    first, second = model(), model()
    first.fit(IDS, LABELS, verbose=0)
    path = tf.train.Checkpoint(embedding=first.embedding).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(embedding=second.embedding).restore(path)
    losses = [each.fit(IDS, LABELS, verbose=0).history["loss"] for each in (first, second)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
