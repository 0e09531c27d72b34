"""Each argument of a stock Embedding is honoured, or refused by its name with the reason."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies.embedding.tf_keras_layer import DistributedEmbedding as TfKerasEmbedding

pytestmark = pytest.mark.training

EMBEDDINGS = {"keras": strategies.DistributedEmbedding, "tf_keras": TfKerasEmbedding}
both = pytest.mark.parametrize("api", EMBEDDINGS)
REFUSED = {
    "embeddings_regularizer": "l2",
    "embeddings_constraint": "non_neg",
    "weights": [np.ones([2, 2])],
    "lora_rank": 2,
    "lora_alpha": 2,
    "quantization_config": {},
    "input_length": 3,
    "sparse": True,
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_what_rows_cannot_have_is_refused_by_its_name(api, name):
    with pytest.raises(ValueError, match=rf"\. Received: {name}="):
        EMBEDDINGS[api](2, **{name: REFUSED[name]})
    EMBEDDINGS[api](2, **{name: None})


@both
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_rows_are_float32(api, dtype):
    with pytest.raises(ValueError, match=f"Received: the dtype policy '{dtype}'. Create the layer"):
        EMBEDDINGS[api](2, dtype=dtype)
    if api == "keras":
        with pytest.raises(ValueError, match="the dtype policy 'int8_from_float32'"):
            EMBEDDINGS[api](2, dtype="int8_from_float32")


def test_all_arguments_of_the_stock_layer_are_known():
    of_base = {"args", "kwargs", "self", "name", "dtype", "trainable", "activity_regularizer"}
    ours = set(inspect.signature(strategies.DistributedEmbedding.__init__).parameters)
    for module in (keras, tf_keras):
        stock = set(inspect.signature(module.layers.Embedding.__init__).parameters)
        assert stock <= ours | of_base | set(REFUSED), stock - ours - of_base - set(REFUSED)


@both
def test_the_arguments_of_the_stock_layer_are_attributes(api):
    stock = {"keras": keras, "tf_keras": tf_keras}[api].layers.Embedding(5, 2)
    layer = EMBEDDINGS[api](2, 5)
    assert (layer.input_dim, layer.output_dim) == (stock.input_dim, stock.output_dim)
    assert layer.mask_zero == stock.mask_zero
    assert type(layer.embeddings_initializer) is type(stock.embeddings_initializer)
    tables = {
        name: strategies.FeatureConfig(strategies.TableConfig(name, width))
        for name, width in {"a": 2, "b": 3}.items()
    }
    several = EMBEDDINGS[api](features=tables)
    assert not hasattr(several, "output_dim")
    with pytest.raises(
        AttributeError, match="attribute input_dim. Received: the layer .* with 2 tables"
    ):
        _ = several.input_dim


@both
def test_what_every_layer_takes_is_honoured(api):
    module = {"keras": keras, "tf_keras": tf_keras}[api]
    layer = EMBEDDINGS[api](
        2,
        name="users",
        trainable=False,
        dtype="mixed_bfloat16",
        embeddings_initializer="ones",
        activity_regularizer=module.regularizers.L2(0.5),
    )
    for each in (layer, EMBEDDINGS[api].from_config(layer.get_config())):
        output = each(np.array([1, 2]), training=True)
        assert output.dtype == tf.bfloat16 and each.name == "users"
        stock = module.layers.Embedding(
            3, 2, dtype="mixed_bfloat16", embeddings_initializer="ones",
            activity_regularizer=module.regularizers.L2(0.5),
        )  # fmt: skip
        stock(np.array([1, 2]))
        assert float(each.losses[0]) == float(stock.losses[0]) > 0
        # A frozen layer gives no id a row.
        assert not len(each.rows()[0]) and not each.trainable_variables


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_ids_of_every_width(dtype):
    layer = strategies.DistributedEmbedding(2)
    layer(np.array([0, 100], dtype), training=True)
    assert layer.rows()[0].tolist() == [0, 100]


@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_ids_beyond_int64_are_refused(value):
    ids = np.array([5, value], np.uint64)
    layer = strategies.DistributedEmbedding(2)
    with pytest.raises(ValueError, match=r"Received: a uint64 id of 2\*\*63 or more"):
        layer(ids, training=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Received: a uint64 id of 2"):
        tf.function(layer)(tf.constant(ids))
    with pytest.raises(ValueError, match=r"Received: a uint64 id of 2\*\*63 or more"):
        layer.set_rows(ids, np.ones([2, 2]))
    assert not len(layer.rows()[0])


def test_rows_are_set_for_integers(tmp_path):
    layer = strategies.DistributedEmbedding(2)
    layer.build()
    for ids in (np.array([1.5]), np.array(["5"]), np.array([True])):
        with pytest.raises(ValueError, match=f"Ids must be integers. Received: {ids.dtype}"):
            layer.set_rows(ids, np.ones([1, 2]))
    np.save(tmp_path / "a-keys.npy", np.array([5, 2**63], np.uint64))
    np.save(tmp_path / "a-values.npy", np.ones([2, 2], np.float32))
    with pytest.raises(ValueError, match="Received: a uint64 id of 2"):
        layer.import_rows(str(tmp_path))
    assert not len(layer.rows()[0])


SETTINGS = [
    {"admission": strategies.Admission(3)},
    {
        "admission": strategies.Admission(3, memory=2**16),
        "eviction": strategies.Eviction(age=5, seconds=2.5, every=3),
    },
    {"input_dim": 9, "overflow": "share", "eviction": strategies.Eviction(count=2)},
    {"input_dim": 9, "placement": "replicated", "optimizer": "adagrad"},
]


@pytest.mark.each_value
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(
    ("api", "is_single"),
    [
        ("keras", True),
        ("tf_keras", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("keras", False), ("tf_keras", True)]
        ),
    ],
)
def test_every_setting_is_in_a_saved_model(api, settings, is_single, tmp_path):
    module = {"keras": keras, "tf_keras": tf_keras}[api]
    inputs = module.Input([1], dtype="int64", name="ids")
    if is_single:
        layer = EMBEDDINGS[api](2, **settings)
        outputs = layer(inputs)
    else:
        table = strategies.TableConfig("table", 2, **settings)
        layer = EMBEDDINGS[api](features={"ids": strategies.FeatureConfig(table)})
        outputs = layer({"ids": inputs})["ids"]
    module.Model(inputs, outputs).save(tmp_path / "model.keras")
    loaded = module.models.load_model(tmp_path / "model.keras")
    loaded(np.array([[1]], np.int64))
    (again,) = (each for each in loaded.layers if isinstance(each, EMBEDDINGS[api]))
    assert again.get_config() == layer.get_config()


@both
@pytest.mark.parametrize(
    ("name", "value"), [("admission", 3), ("eviction", 3), ("admission", strategies.Eviction(3))]
)
def test_a_setting_of_another_type_is_refused(api, name, value):
    with pytest.raises(ValueError, match=f"{name} must be a strategies.*Received"):
        EMBEDDINGS[api](2, **{name: value})
    with pytest.raises(ValueError, match="TableConfig. Received: 'items'"):
        strategies.FeatureConfig("items")


def test_keras_compiles_no_model_with_a_table_by_xla():
    """Keras does by default where there is a GPU, for one replica without a strategy."""
    layer = strategies.DistributedEmbedding(2)
    assert layer.supports_jit is False
    model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)
    model.fit(np.ones([4, 3], np.int64), np.ones([4, 1]), verbose=0)
    assert layer.rows()[0].tolist() == [1]


@both
def test_a_placeholder_of_the_other_keras_is_refused(api):
    apis = {"keras": keras, "tf_keras": tf_keras}
    own, (other,) = apis.pop(api), apis
    layer = EMBEDDINGS[api](4)
    with pytest.raises(TypeError, match=f"an input of {other}. Use .*{other}_layer"):
        layer(apis[other].Input([3], dtype="int64"))
    assert layer(own.Input([3], dtype="int64")).shape[-1] == 4
