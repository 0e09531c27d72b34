"""What DistributedEmbedding takes and gives in one process, against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from strategies import Admission, DistributedEmbedding, Eviction, FeatureConfig, TableConfig
from strategies.embedding.inputs import Bags
from strategies.embedding.tf_keras_layer import DistributedEmbedding as TfKerasEmbedding

pytestmark = pytest.mark.training

ID = st.integers(-(2**63), 2**63 - 1)


def expected(bags, weights, rows, combiner):
    result = []
    for bag, weight in zip(bags, weights, strict=True):
        w = np.array(weight, np.float64)
        total = sum((w[k] * rows[one] for k, one in enumerate(bag)), np.zeros(3))
        divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        result.append(total / divisor if divisor else np.zeros(3))
    return np.array(result).reshape([-1, 3])


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.tuples(ID, st.floats(0.5, 2.0, width=32)), max_size=4), max_size=4),
    st.sampled_from(["sum", "mean", "sqrtn"]),
)
def test_bags_of_any_lengths_ragged_and_sparse(pairs, combiner):
    layer = DistributedEmbedding(3, name="bags", embeddings_initializer="normal", combiner=combiner)
    bags = [[one for one, _ in bag] for bag in pairs]
    weights = [[weight for _, weight in bag] for bag in pairs]
    flat = sorted({one for bag in bags for one in bag})
    single = DistributedEmbedding(3, name="bags", embeddings_initializer="normal")
    rows = dict(zip(flat, single(np.array(flat, np.int64)).numpy(), strict=True)) if flat else {}
    ragged = tf.ragged.constant(bags, tf.int64, ragged_rank=1, inner_shape=())
    ragged_weights = tf.ragged.constant(weights, tf.float32, ragged_rank=1, inner_shape=())
    want = expected(bags, weights, rows, combiner)
    np.testing.assert_allclose(layer(ragged, weights=ragged_weights), want, atol=1e-5)
    sparse, sparse_weights = ragged.to_sparse(), ragged_weights.to_sparse()
    np.testing.assert_allclose(layer(sparse, weights=sparse_weights), want, atol=1e-5)
    ones = [[1.0] * len(bag) for bag in bags]
    np.testing.assert_allclose(layer(ragged), expected(bags, ones, rows, combiner), atol=1e-5)


def test_dense_ids_of_any_rank_with_padding():
    ids = np.array([[[5, 0], [7, 7]], [[0, 0], [-1, 5]]])
    plain = DistributedEmbedding(3, name="dense", embeddings_initializer="normal", mask_zero=True)
    bags = DistributedEmbedding(
        3, name="dense", embeddings_initializer="normal", combiner="mean", mask_zero=True
    )
    rows = plain(ids).numpy()
    assert rows.shape == (2, 2, 2, 3)
    np.testing.assert_array_equal(plain.compute_mask(tf.constant(ids)), ids != 0)
    means = bags(ids).numpy()
    np.testing.assert_allclose(means[0, 0], rows[0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(means[0, 1], rows[0, 1, 0], atol=1e-6)
    np.testing.assert_array_equal(means[1, 0], 0.0)
    np.testing.assert_allclose(means[1, 1], rows[1, 1].mean(axis=0), atol=1e-6)
    ragged = plain(tf.ragged.constant([[3], [], [4, 5]], tf.int64))
    assert ragged.row_lengths().numpy().tolist() == [1, 0, 2] and ragged.shape[-1] == 3


def test_features_share_tables_and_a_config_makes_the_layer_again():
    shared = TableConfig("shared", 2, embeddings_initializer="normal", admission=Admission(2))
    other = TableConfig("other", 3, input_dim=9, eviction=Eviction(age=3, count=2))
    features = {
        "a": FeatureConfig(shared),
        "b": FeatureConfig(shared, "sum"),
        "c": FeatureConfig(other, "sqrtn"),
    }
    layer = DistributedEmbedding(features=features, seed=3, unseen="zeros", name="three")
    again = DistributedEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    inputs = {name: np.array([[1, 2], [2, 4]]) for name in features}
    outputs = layer(inputs, training=True)
    assert [tuple(outputs[name].shape) for name in features] == [(2, 2, 2), (2, 2), (2, 3)]
    np.testing.assert_allclose(tf.reduce_sum(outputs["a"], 1), outputs["b"], atol=1e-6)
    assert layer.rows("shared")[0].tolist() == [1, 2, 4]
    with pytest.raises(ValueError, match="table must be one of 'other', 'shared'. Received: None"):
        layer.rows()


def test_half_precision_and_several_steps_an_execution():
    inputs = keras.Input([2], dtype="int64")
    layer = DistributedEmbedding(3, dtype="mixed_bfloat16")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    model.compile("adam", "mse", steps_per_execution=3)
    model.fit(np.arange(24).reshape([12, 2]), np.ones([12, 1]), batch_size=2, verbose=0)
    assert layer(np.array([1])).dtype == tf.bfloat16
    ids, rows = layer.rows()
    assert ids.tolist() == list(range(24)) and rows.dtype == np.float32


@pytest.mark.parametrize("eagerly", [False, True])
def test_in_a_model_that_is_built_by_its_first_step(eagerly):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.rows = DistributedEmbedding(1, embeddings_initializer="zeros", combiner="sum")

        def call(self, ids, training=None):
            return self.rows(ids, training=training)

    model = Model()
    model.compile(keras.optimizers.SGD(0.5), "mse", run_eagerly=eagerly)
    model.fit(np.array([[1], [2]]), np.ones([2, 1]), batch_size=2, verbose=0)
    np.testing.assert_array_equal(model.rows.rows()[1], [[0.5], [0.5]])


def test_one_layer_called_twice_in_a_step_has_the_gradient_of_both():
    layer = DistributedEmbedding(2, embeddings_initializer="zeros")
    optimizer = keras.optimizers.Adagrad(1.0, initial_accumulator_value=0.0, epsilon=0.0)
    for _ in range(2):
        with tf.GradientTape() as tape:
            first, second = (layer(np.array(ids), training=True) for ids in ([1, 2], [2, 3, 3]))
            loss = tf.reduce_sum(first) + tf.reduce_sum(second)
        (gradient,) = tape.gradient(loss, layer.trainable_variables)
        by_id = dict(zip(layer.rows()[0].tolist(), gradient.values.numpy()[:, 0], strict=True))
        assert sorted(by_id.values()) == [1.0, 2.0, 2.0]
        optimizer.apply([gradient], layer.trainable_variables)
    np.testing.assert_allclose(layer(np.array([1, 2, 3])).numpy(), -1 - 0.5**0.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("framework", "kind"), [(keras, DistributedEmbedding), (tf_keras, TfKerasEmbedding)]
)
def test_a_seeded_initializer_is_kept_in_the_configuration(framework, kind):
    seeded = framework.initializers.RandomUniform(seed=5)
    layer = kind(2, name="ids", embeddings_initializer=seeded)
    expected = kind(2, name="ids", seed=5)(np.array([3, 4]))
    for each in (layer, kind.from_config(layer.get_config())):
        np.testing.assert_array_equal(each(np.array([3, 4])), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DistributedEmbedding(), "and features must be given. Received: neither"),
        (lambda: DistributedEmbedding(0), "output_dim must be an integer >= 1. Received: 0"),
        (lambda: DistributedEmbedding(2, combiner="max"), "combiner must be one of .* 'max'"),
        (lambda: DistributedEmbedding(2, unseen="nan"), "unseen must be one of .* Received: 'nan'"),
        (lambda: DistributedEmbedding(2, seed=0.5), "seed must be an integer. Received: 0.5"),
        (lambda: DistributedEmbedding(features={}), "cannot be empty. Received: no feature"),
        (lambda: DistributedEmbedding(features={"a": 1}), "must be a FeatureConfig. Received: 1"),
        (
            lambda: DistributedEmbedding(2, embeddings_initializer="glorot_uniform"),
            "Received: embeddings_initializer GlorotUniform",
        ),
        (
            lambda: DistributedEmbedding(
                2,
                embeddings_initializer=keras.initializers.RandomNormal(
                    seed=keras.random.SeedGenerator(5)
                ),
            ),
            "seed of an embedding's initializer must be an integer. Received: {.* Pass a number",
        ),
        (lambda: Admission(0), "count must be an integer >= 1. Received: 0"),
        (lambda: Eviction(), "requires an age, a count, seconds, or a policy. Received: none"),
        (lambda: DistributedEmbedding(2).rows(), "Received: the layer .*, which is not built"),
        (
            lambda: DistributedEmbedding(2)(np.array([0.5])),
            r"or whole numbers of float64 between -\d+ and \d+, .* Received: \[0.5\]. Create",
        ),
        (lambda: DistributedEmbedding(2)(tf.constant(["a"])), "integers. Received: string. Create"),
        (
            lambda: DistributedEmbedding(2)(tf.sparse.from_dense([[1]])),
            "Received: combiner=None. Use",
        ),
        (
            lambda: Bags(tf.constant([[1]]), tf.constant([[1.0]]), None, False),
            "Received: weights with combiner=None",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("options", [{"use_ema": True}, {"gradient_accumulation_steps": 2}])
def test_optimizers_that_touch_all_rows_are_refused(options):
    layer = DistributedEmbedding(2)
    layer(np.array([1]))
    optimizer = keras.optimizers.SGD(1.0, **options)
    (option,) = options
    with pytest.raises(ValueError, match=f"Received: SGD with {option}=.* Omit {option}"):
        optimizer.build(layer.trainable_variables)


def test_stock_strategies_are_refused():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        with pytest.raises(ValueError, match="Received: .*OneDeviceStrategy. Use"):
            DistributedEmbedding(2)


class Unbuilt(keras.Model):
    """A model that Keras 3 builds in fit, from the shapes and dtypes of a batch."""

    def __init__(self):
        super().__init__()
        self.embedding = DistributedEmbedding(2, combiner="sum")
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.dense(self.embedding(inputs, training=training))


@pytest.mark.parametrize(
    ("form", "strategy"),
    [
        ("dense", strategies.MirroredStrategy),
        ("ragged", strategies.MirroredStrategy),
        ("sparse", strategies.CentralStorageStrategy),
    ],
)
def test_fit_builds_a_model_of_several_replicas(form, strategy):
    ids = np.array([[-(2**63), 1], [2**63 - 1, 5], [7, 7], [2**62 + 1, 0]])
    inputs = {
        "dense": lambda: ids,
        "ragged": lambda: tf.RaggedTensor.from_tensor(ids),
        "sparse": lambda: tf.RaggedTensor.from_tensor(ids).to_sparse(),
    }[form]()
    data = tf.data.Dataset.from_tensor_slices((inputs, np.ones([4, 1], np.float32))).batch(4)
    with strategy(["CPU:0", "CPU:1"]).scope():
        model = Unbuilt()
        model.compile("sgd", "mse")
    model.fit(data, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.embedding.rows()[0], np.unique(ids))


@pytest.mark.in_turn
@pytest.mark.parametrize("embedding", [DistributedEmbedding, TfKerasEmbedding])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_rows_are_combined_in_float32(embedding, policy, combiner):
    ragged = tf.ragged.constant([[1, 2, 0], [], [3]], tf.int64)
    some = tf.ragged.constant([[0.5, 3.0, 1.0], [], [2.0]])
    dense, all_of_them = tf.constant([[1, 0], [2, 3]], tf.int64), tf.constant([[0.5, 1.0]] * 2)
    cases = [(ragged, None), (ragged, some), (ragged.to_sparse(), None)]
    cases += [(ragged.to_sparse(), some.to_sparse()), (dense, None), (dense, all_of_them)]
    for mask_zero in (False, True):
        lower, full = (
            embedding(
                3, name="table", combiner=combiner, mask_zero=mask_zero, dtype=dtype,
                embeddings_initializer="normal",
            )
            for dtype in (policy, "float32")
        )  # fmt: skip
        for ids, weights in cases:
            with tf.GradientTape() as tape:
                found = lower(ids, weights=weights, training=True)
                loss = tf.reduce_sum(tf.cast(found, tf.float32))
            expected = full(ids, weights=weights)
            assert found.dtype == lower.compute_dtype
            np.testing.assert_array_equal(found, tf.cast(expected, found.dtype))
            (gradient,) = tape.gradient(loss, lower.trainable_variables)
            assert gradient.dtype == tf.float32
