"""What is read of a table by others than an optimizer, and rows that several replicas decide on."""

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies.embedding.tf_keras_layer import DistributedEmbedding as TfKerasEmbedding

pytestmark = pytest.mark.training

STRATEGIES = pytest.mark.parametrize(
    "make",
    [strategies.MirroredStrategy, strategies.CentralStorageStrategy],
    ids=["mirrored", "central"],
)
APIS = pytest.mark.parametrize(
    ("api", "embedding"),
    [(keras, strategies.DistributedEmbedding), (tf_keras, TfKerasEmbedding)],
    ids=["keras", "tf_keras"],
)
ROWS = np.random.default_rng(0).normal(size=[4, 2]).astype(np.float32)


def layer_of(embedding, rows=ROWS, **arguments):
    """Returns a layer whose ids 0, 1, 2, ... have rows, and the weight of these."""
    layer = embedding(rows.shape[1], **arguments)
    layer.build()
    layer.set_rows(np.arange(len(rows)), rows)
    return layer, layer.embeddings


@pytest.mark.in_turn
@APIS
def test_who_reads_a_table_gets_all_rows(api, embedding):
    layer, weight = layer_of(embedding)
    norm = np.linalg.norm(ROWS)
    hidden = np.ones([1, 2], np.float32)

    def read():
        return (
            tf.nn.l2_loss(weight),
            tf.linalg.global_norm(layer.weights),
            tf.matmul(hidden, weight, transpose_b=True),
            tf.gather(weight, [3, 1]),
            tf.reduce_sum(weight[1]),
            api.regularizers.L2(0.1)(weight),
        )

    expected = (norm**2 / 2, norm, hidden @ ROWS.T, ROWS[[3, 1]], ROWS[1].sum(), 0.1 * norm**2)
    for values in (read(), tf.function(read)()):
        for value, wanted in zip(values, expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-6)
    for array in (weight.numpy(), np.asarray(weight), tf.convert_to_tensor(weight).numpy()):
        np.testing.assert_array_equal(array, ROWS)
    np.testing.assert_allclose(keras.ops.sum(keras.ops.square(weight)), norm**2, rtol=1e-6)
    np.testing.assert_array_equal(layer.rows()[0], np.arange(4))


@pytest.mark.in_turn
@APIS
@pytest.mark.parametrize("is_eager", [True, False], ids=["eager", "function"])
def test_the_gradient_of_a_read_is_that_of_a_stock_layer(api, embedding, is_eager):
    stock = api.layers.Embedding(4, 2)
    stock.build(None)
    stock.set_weights([ROWS])
    layer, _ = layer_of(embedding)
    ids = np.array([1, 1, 3])

    def train(layer, optimizer):
        (weight,) = layer.trainable_variables

        def step():
            with tf.GradientTape() as tape:
                hidden = layer(ids)
                logits = tf.matmul(hidden, weight, transpose_b=True)
                loss = tf.reduce_sum(logits**2) + 0.5 * tf.nn.l2_loss(weight)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            return loss

        step = step if is_eager else tf.function(step)
        return [float(step()) for _ in range(3)]

    stock_losses = train(stock, api.optimizers.SGD(0.1, momentum=0.5))
    np.testing.assert_allclose(
        train(layer, api.optimizers.SGD(0.1, momentum=0.5)), stock_losses, rtol=1e-5
    )
    np.testing.assert_allclose(layer.rows()[1], stock.get_weights()[0], rtol=1e-5)


@APIS
def test_a_bounded_table_has_the_rows_of_all_ids(api, embedding):
    del api
    layer, weight = layer_of(embedding, input_dim=6, embeddings_initializer="ones")
    expected = np.concatenate([ROWS, np.ones([2, 2], np.float32)])
    np.testing.assert_array_equal(weight.numpy(), expected)
    assert len(layer.rows()[0]) == 4
    with tf.GradientTape() as tape:
        loss = tf.nn.l2_loss(tf.convert_to_tensor(weight))
    tape.gradient(loss, layer.trainable_variables)
    assert len(layer.rows()[0]) == 6


@APIS
def test_other_tables_are_not_read_as_variables(api, embedding):
    del api
    layer, weight = layer_of(embedding)
    layer.set_rows(np.array([-7]), np.zeros([1, 2], np.float32))
    for read in (tf.nn.l2_loss, tf.convert_to_tensor, lambda weight: weight.numpy()):
        with pytest.raises(tf.errors.InvalidArgumentError, match="can be read as a variable"):
            read(weight)
    shared, weight = layer_of(embedding, input_dim=9, overflow="share")
    with pytest.raises(ValueError, match="Received: a read of .* in which ids share a row"):
        tf.nn.l2_loss(weight)
    with pytest.raises(ValueError, match="Only an optimizer can write"):
        shared.tables.weights[0][0].assign_sub(tf.ones([4, 2]))


@APIS
def test_weight_decay_is_of_the_touched_rows(api, embedding):
    layer, weight = layer_of(embedding)
    optimizer = api.optimizers.SGD(0.5, weight_decay=0.1)
    with tf.GradientTape() as tape:
        loss = 0.0 * tf.reduce_sum(layer(np.array([2])))
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    expected = ROWS.copy()
    expected[2] *= 1 - 0.5 * 0.1
    np.testing.assert_allclose(layer.rows()[1], expected, rtol=1e-6)


@pytest.mark.in_turn
@APIS
@STRATEGIES
def test_weight_decay_of_replicas_is_of_the_rows_of_their_step(api, embedding, make):
    ids, labels = np.array([[0], [1], [2], [3]]), np.zeros([4, 1], np.float32)

    def rows_after(strategy):
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            x = api.Input([1], dtype="int64")
            layer = embedding(1, combiner="sum", embeddings_initializer="ones")
            model = api.Model(x, layer(x))
            model.compile(api.optimizers.SGD(0.0625, weight_decay=0.5), "mse")
        model.fit(ids, labels, batch_size=2, shuffle=False, verbose=0)
        return layer.rows()[1]

    # Decayed by 1 - 0.0625 * 0.5; the gradient of the mean over two examples is the row's value 1.
    expected = np.full([4, 1], 1 - 0.03125 - 0.0625)
    np.testing.assert_allclose(rows_after(None), expected, rtol=1e-6)
    np.testing.assert_allclose(rows_after(make(num_replicas=2)), expected, rtol=1e-6)


@APIS
def test_a_tied_output_over_candidates(api, embedding):
    del api
    layer, weight = layer_of(embedding)
    candidates = np.array([0, 3])
    with tf.GradientTape() as tape:
        logits = tf.matmul(layer(np.array([1])), layer(candidates), transpose_b=True)
    gradient = tf.convert_to_tensor(tape.gradient(logits, weight).values)
    np.testing.assert_allclose(logits, ROWS[[1]] @ ROWS[candidates].T, rtol=1e-6)
    np.testing.assert_allclose(
        np.sort(gradient, 0), np.sort([ROWS[0] + ROWS[3], ROWS[1], ROWS[1]], 0)
    )


def trained(api, embedding, strategy, **arguments):
    """Returns the ids, rows and statistics after three steps of two ids."""
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        ids = api.Input([1], dtype="int64")
        layer = embedding(1, combiner="sum", embeddings_initializer="ones", **arguments)
        model = api.Model(ids, layer(ids))
        model.compile(api.optimizers.SGD(1.0), "mse")
    ids, labels = np.array([[5], [5], [6], [7], [7], [8]]), np.full([6, 1], 11.0, np.float32)
    model.fit(ids, labels, batch_size=2, shuffle=False, verbose=0)
    (counts,) = layer.statistics().values()
    return *layer.rows(), {name: counts[name] for name in ("lookups", "unique", "new", "refused")}


@pytest.mark.in_turn
@APIS
@STRATEGIES
def test_replicas_decide_on_rows_together(api, embedding, make):
    arguments = {"admission": strategies.Admission(2), "unseen": "zeros"}
    alone = trained(api, embedding, None, **arguments)
    together = trained(api, embedding, make(["CPU:0", "CPU:1"]), **arguments)
    # Both occurrences of 5 are in one step, and each has half of the loss's gradient, 2 (1 - 11).
    np.testing.assert_allclose(alone[1], [[21.0], [11.0]])
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "options", [{"admission": strategies.Admission(2)}, {"input_dim": 4, "overflow": "evict"}]
)
def test_replicas_that_cannot_decide_together_say_so(options):
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = strategies.DistributedEmbedding(1, **options)
        layer.build()

    @tf.function
    def forward():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([1]), training=True))
        return tape.gradient(loss, layer.trainable_variables)[0].values

    with pytest.raises(ValueError, match="All replicas of a worker must count the ids of a step"):
        strategy.run(lambda: forward())


@pytest.mark.in_turn
@APIS
@pytest.mark.parametrize("fits_inside", [True, False], ids=["inside", "behind"])
def test_in_the_scope_of_the_default_strategy(api, embedding, fits_inside):
    ids, labels = np.array([[1], [2]]), np.ones([2, 1], np.float32)
    api.backend.clear_session()
    with tf.distribute.get_strategy().scope():
        model = api.Sequential([embedding(1, combiner="sum"), api.layers.Dense(1)])
        model.compile(api.optimizers.SGD(0.1, momentum=0.9), "mse")
        if fits_inside:
            model.fit(ids, labels, verbose=0)
    model.fit(ids, labels, verbose=0)
    assert list(model.layers[0].tables.weights[0][0].slots)


@pytest.mark.in_turn
@APIS
def test_slots_of_a_file_need_a_built_optimizer_like_others(api, embedding, tmp_path, caplog):
    def make():
        model = api.Sequential([embedding(1, combiner="sum"), api.layers.Dense(1)])
        model.compile(api.optimizers.SGD(0.1, momentum=0.9), "mse")
        model(np.array([[1]]))
        return model

    path = str(tmp_path / "model.weights.h5")
    saved, loaded = make(), make()
    saved.fit(np.array([[1], [2]]), np.ones([2, 1]), verbose=0)
    saved.save_weights(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded.load_weights(path)
    said = [*caplog.messages, *(str(each.message) for each in caught)]  # tf_keras logs it
    assert any("Skipping variable loading for optimizer" in each for each in said), said
    loaded.optimizer.build(loaded.trainable_variables)
    store = loaded.layers[0].tables.table(None).store
    rows = tf.range(store.view.length.read_value())
    for slot in store.slots().values():
        slot.resize(store.view.length.read_value())
        np.testing.assert_array_equal(slot.gather(rows), np.zeros([2, 1]))
    loaded.load_weights(path)
    assert all(np.all(slot.gather(rows).numpy() != 0) for slot in store.slots().values())
