"""Each optimizer of Keras 3 and tf_keras: on rows as on a stock layer's, or refused by its name."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies.embedding.tf_keras_layer import DistributedEmbedding as TfKerasEmbedding

pytestmark = pytest.mark.training

APIS = {
    "keras": (keras, strategies.DistributedEmbedding),
    "tf_keras": (tf_keras, TfKerasEmbedding),
}
IDS = 6
WIDTH = 3
# Once each: of an id that comes twice, stock optimizers square the two gradients apart.
EACH_ID = np.arange(IDS)[::-1]

# Of both versions, with options that change what a step does.
WORKING = {
    "SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}],
    "Adagrad": [{}, {"initial_accumulator_value": 0.3}],
    "Adam": [{}, {"amsgrad": True}, {"clipnorm": 0.1}, {"clipvalue": 0.01}, {"weight_decay": 0.1}],
    "AdamW": [{}, {"amsgrad": True}, {"global_clipnorm": 0.1}],
    "Adamax": [{}],
    "Adadelta": [{}],
    "Ftrl": [{}, {"l1_regularization_strength": 0.01, "l2_shrinkage_regularization_strength": 0.1}],
    "Lion": [{}],
    "Nadam": [{}],
    "RMSprop": [{}, {"centered": True}, {"centered": True, "momentum": 0.5}],
}
REFUSED = {
    "keras": {
        "Adafactor": {},
        "Lamb": {},
        "Muon": {},
        "ScheduleFreeAdamW": {},
    },
    "tf_keras": {"Adafactor": {}},
}
WRAPPERS = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap"}
CASES = [
    pytest.param(
        api,
        name,
        options,
        id=f"{api}-{name}-{'-'.join(options)}",
        marks=[pytest.mark.slow] if options and api == "tf_keras" and name != "RMSprop" else [],
    )
    for api in APIS
    for name, several in WORKING.items()
    for options in several
]


def train(layer, optimizer, targets, ids=EACH_ID, is_dense=False):
    """Makes steps in each of which every id comes."""
    for target in targets:
        with tf.GradientTape() as tape:
            rows = layer(ids, training=True)
            loss = tf.reduce_sum((rows - target) ** 2)
        gradients = tape.gradient(loss, layer.trainable_variables)
        if is_dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))


def compare(api_name, make_optimizer, looked_up=EACH_ID):
    """Trains a layer of ours and a stock one, and compares their rows."""
    api, layer = APIS[api_name]
    ours, stock = layer(WIDTH, name="rows"), api.layers.Embedding(IDS, WIDTH, name="embeddings")
    first = ours(np.arange(IDS)).numpy()
    stock(EACH_ID)
    stock.set_weights([first])
    targets = np.random.default_rng(0).normal(size=[5, len(looked_up), WIDTH]).astype("float32")
    for each in (ours, stock):
        is_dense = each is stock and looked_up is not EACH_ID
        train(each, make_optimizer(), targets, looked_up, is_dense)
    ids, rows = ours.rows()
    assert ids.tolist() == list(range(IDS))
    expected = stock.get_weights()[0]
    assert not np.allclose(expected, first, atol=1e-4), "nothing was trained"
    np.testing.assert_allclose(rows, expected, atol=2e-5)


def rate_of(name):
    return 0.5 if name in ("Adadelta", "Ftrl") else 0.01


@pytest.mark.each_value
@pytest.mark.parametrize(("api", "name", "options"), CASES)
def test_rows_are_trained_as_those_of_a_stock_layer(api, name, options):
    cls = getattr(APIS[api][0].optimizers, name)
    compare(api, lambda: cls(rate_of(name), **options))


@pytest.mark.parametrize("name", WORKING)
def test_an_id_that_comes_twice_is_trained_by_the_sum(name):
    """As a stock layer is by a dense gradient."""
    cls = getattr(keras.optimizers, name)
    compare("keras", lambda: cls(rate_of(name)), np.tile(EACH_ID, 2))


@pytest.mark.in_turn
@pytest.mark.training
@pytest.mark.parametrize("ids_of_second", [20, 21], ids=["as many ids", "more ids"])
def test_a_dense_gradient_of_several_replicas_is_refused(ids_of_second):
    """Keras 3's global_clipnorm makes it; replicas' rows would be added by position."""
    strategy = strategies.MirroredStrategy(num_replicas=2)
    ids = np.zeros([2, 21], np.int64)
    ids[0, :20], ids[1, :ids_of_second] = range(20), range(100, 100 + ids_of_second)

    def fit(**options):
        with strategy.scope():
            inputs = keras.Input([21], dtype="int64")
            rows = strategies.DistributedEmbedding(2)(inputs)
            outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
            model = keras.Model(inputs, outputs)
            model.compile(keras.optimizers.SGD(0.1, **options), "mse")
        return model.fit(ids, np.ones([2, 1]), batch_size=2, verbose=0)

    fit(clipnorm=1.0)
    with pytest.raises(ValueError, match="must be tf.IndexedSlices.*global_clipnorm"):
        fit(global_clipnorm=1.0)


@pytest.mark.parametrize(
    ("api", "name"), [(api, name) for api, names in REFUSED.items() for name in names]
)
def test_optimizers_that_look_at_whole_variables_are_refused(api, name):
    layer = APIS[api][1](WIDTH)
    layer(EACH_ID)
    optimizer = getattr(APIS[api][0].optimizers, name)()
    with pytest.raises(ValueError, match=f"Received: {name}, which uses whole variables"):
        optimizer.build(layer.trainable_variables)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "Ftrl", "RMSprop", "Nadam"])
def test_legacy_optimizers_are_refused(name):
    layer = TfKerasEmbedding(WIDTH)
    optimizer = getattr(tf_keras.optimizers.legacy, name)(0.1)
    with pytest.raises(ValueError, match=f"Received: tf_keras.optimizers.legacy.{name}. Use "):
        train(layer, optimizer, np.zeros([1, IDS, WIDTH], np.float32))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_updates_of_rows_are_not_compiled_by_xla(name):
    """Where there is a GPU, optimizers of tf_keras compile theirs."""

    def compiling():
        optimizer = getattr(tf_keras.optimizers, name)(0.01)
        optimizer.jit_compile = True
        return optimizer

    compare("tf_keras", compiling)


def test_all_optimizers_are_known():
    """A new version of Keras may have more."""
    for api, (module, _) in APIS.items():
        found = {
            name
            for name, value in vars(module.optimizers).items()
            if inspect.isclass(value) and name[0].isupper()
        }
        assert found == {*WORKING, *REFUSED[api], *(WRAPPERS & found)}


def test_an_optimizer_of_ones_own_says_that_it_works_element_by_element():
    class Own(keras.optimizers.SGD):
        pass

    layer = strategies.DistributedEmbedding(WIDTH)
    layer(EACH_ID)
    with pytest.raises(ValueError, match="Received: Own, which .* set `elementwise = True`"):
        Own(momentum=0.5).build(layer.trainable_variables)
    Own.elementwise = True
    compare("keras", lambda: Own(0.01, momentum=0.5))


def test_rows_and_the_rest_of_a_model_may_have_two_optimizers():
    compare(
        "keras",
        lambda: keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(
                keras.optimizers.Muon(), {".*": keras.optimizers.Adam(0.01)}
            )
        ),
    )


def test_a_pattern_of_the_stock_name_leaves_rows_out_of_weight_decay():
    def optimizer():
        made = keras.optimizers.AdamW(0.01, weight_decay=0.5)
        made.exclude_from_weight_decay(var_names=["embeddings"])
        return made

    compare("keras", optimizer)
