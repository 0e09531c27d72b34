"""Models as people write them: DistributedEmbedding in place of a stock Embedding, same losses.

embedding_models.py keras|tf_keras none|mirrored|cluster [MODE]

Each check trains with the stock layer in one process first. All workers see the directory in which
it is run, and it is empty.
"""

import contextlib
import importlib
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import raises
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows, embedding_of
from tests.support.reference import of_one_process

api, kind = sys.argv[1:3]
mode = sys.argv[3] if len(sys.argv) > 3 else "sync"
in_step = mode == "sync"
k = importlib.import_module(api)
layers = k.layers
one_process = tf.distribute.get_strategy()
strategy = {
    "none": lambda: one_process,
    "mirrored": lambda: strategies.MirroredStrategy(num_replicas=2),
    "cluster": lambda: strategies.from_tf_config(mode=mode),
}[kind]()

ROWS, LENGTH, WIDTH = 16, 4, 3
IDS = np.arange(1, 1 + ROWS * LENGTH).reshape([ROWS, LENGTH])
UNSEEN = IDS + 1000
PADDED = np.where(np.arange(LENGTH) <= np.arange(ROWS)[:, None] % LENGTH, IDS, 0)
LABELS = (np.arange(ROWS) % 2).astype("float32")[:, None]
EPOCHS = 40


class Plain(k.Model):
    """Has no `training`, so that Keras 3 tells no layer in it."""

    def __init__(self, embedding, heads, **kwargs):
        super().__init__(**kwargs)
        self.embedding, self.heads = embedding, heads

    def call(self, ids):
        x = self.embedding(ids)
        for head in self.heads:
            x = head(x)
        return x

    def get_config(self):
        parts = [self.embedding, *self.heads]
        return {"parts": [k.layers.serialize(each) for each in parts]}

    @classmethod
    def from_config(cls, config):
        first, *others = [k.layers.deserialize(each) for each in config["parts"]]
        return cls(first, others)


class Stock:
    """Stock layers, in one process."""

    is_stock, strategy = True, one_process
    scope = staticmethod(contextlib.nullcontext)

    @staticmethod
    def embedding(**options):
        return layers.Embedding(1 + IDS.size, WIDTH, "ones", **options)


class Ours:
    """This package's layer under the strategy."""

    is_stock, strategy = False, strategy
    scope = staticmethod(contextlib.nullcontext if kind == "none" else strategy.scope)

    @staticmethod
    def embedding(**options):
        return embedding_of(api)(WIDTH, embeddings_initializer="ones", **options)


def has_the_losses_of_stock_layers(train):
    """Compares what `train` returns, given `Stock` and then `Ours`."""
    expected = of_one_process(lambda: train(Stock))
    losses = train(Ours)
    if in_step:  # elsewhere they depend on who comes first
        np.testing.assert_allclose(losses, expected, rtol=2e-3, atol=2e-4)


def start(seed):
    return k.initializers.RandomNormal(0.0, 0.3, seed)


def dense():
    return layers.Dense(1, kernel_initializer=start(1))


def recurrent(layer, units, seed):
    return layer(units, kernel_initializer=start(seed), recurrent_initializer=start(seed + 1))


def lstm():
    return recurrent(layers.LSTM, 3, 2)


def compiled(model):
    model.compile(k.optimizers.Adam(0.05), "mse")
    return model


def bags(embedding):
    """A subclassed model without `training`."""
    sum_of_bag = layers.Lambda(lambda x: tf.reduce_sum(x, 1))
    return compiled(Plain(embedding, [sum_of_bag, dense()]))


def flat(embedding):
    """The same as `bags`, of layers that are saved."""
    return compiled(Plain(embedding, [layers.Flatten(), dense()]))


def fit(model, ids, epochs=8, rows=ROWS):
    history = model.fit(ids, LABELS, epochs=epochs, batch_size=rows, shuffle=False, verbose=0)
    return history.history["loss"]


def ids_of(layer):
    return all_rows(strategy, layer)[0].tolist()


def lookups(layer):
    (numbers,) = layer.statistics().values()
    return numbers["lookups"]


def check_a_subclassed_model_without_training_has_rows_in_fit_and_none_elsewhere():
    def train(side):
        with side.scope():
            model = bags(side.embedding())
        if not side.is_stock:
            model.evaluate(IDS, LABELS, batch_size=ROWS, verbose=0)
            assert ids_of(model.embedding) == []
        losses = fit(model, IDS, EPOCHS)
        assert losses[-1] < 0.01 or not in_step, losses
        if not side.is_stock:
            for ids in (IDS, UNSEEN):
                model.evaluate(ids, LABELS, batch_size=ROWS, verbose=0)
                model.predict(ids, batch_size=ROWS, verbose=0)
                model.embedding(ids)
            assert ids_of(model.embedding) == IDS.ravel().tolist()
            assert lookups(model.embedding) == EPOCHS * IDS.size
        return losses

    has_the_losses_of_stock_layers(train)


def check_a_loop_of_ones_own_with_a_call_under_a_tape():
    def train(side):
        with side.scope():
            model = bags(side.embedding())
            model.embedding.build([None, LENGTH])
        optimizer = model.optimizer

        def replica(ids, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(ids) - labels) ** 2) / ROWS
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def step(ids, labels):
            return side.strategy.run(replica, args=(ids, labels))

        data = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(ROWS).repeat(8)
        data = side.strategy.experimental_distribute_dataset(data)
        losses = [float(side.strategy.reduce("SUM", step(*batch), axis=None)) for batch in data]
        if not side.is_stock:
            model.embedding(UNSEEN)
            assert ids_of(model.embedding) == IDS.ravel().tolist()
        return losses

    has_the_losses_of_stock_layers(train)


def check_a_subclassed_model_that_is_loaded_goes_on_where_it_was_saved():
    def train(side):
        with side.scope():
            model = flat(side.embedding())
        losses = fit(model, IDS)
        if side.is_stock:
            return [*losses, *fit(model, IDS)]
        path = Path("saved.keras").resolve()
        with strategies.writing(path, strategy) as own:
            model.save(own)
        with side.scope():
            again = k.models.load_model(path, custom_objects={"Plain": Plain})
        steps = [int(each.optimizer.iterations.numpy()) for each in (model, again)]
        assert steps[0] == steps[1] >= 8, steps
        assert ids_of(again.embedding) == IDS.ravel().tolist()
        expected, found = (each.predict(IDS, batch_size=ROWS, verbose=0) for each in (model, again))
        np.testing.assert_array_equal(found, expected)
        return [*losses, *fit(again, IDS)]

    has_the_losses_of_stock_layers(train)


def check_a_sequential_model_without_an_input():
    """With int64 ids."""

    def train(side):
        with side.scope():
            heads = [layers.GlobalAveragePooling1D(), dense()]
            model = compiled(k.Sequential([side.embedding(), *heads]))
        return fit(model, IDS)

    has_the_losses_of_stock_layers(train)


def check_an_input_of_kerass_default_dtype():
    def train(side):
        with side.scope():
            ids = k.Input([LENGTH])
            outputs = dense()(layers.Flatten()(side.embedding()(ids)))
            model = compiled(k.Model(ids, outputs))
        return fit(model, IDS)

    has_the_losses_of_stock_layers(train)


def check_layers_that_take_masks():
    """Recurrent ones, both directions, means, attention."""

    def train(side):
        with side.scope():
            ids = k.Input([LENGTH], dtype="int64")
            rows = side.embedding(mask_zero=True)(ids)
            assert getattr(rows, "_keras_mask", None) is not None
            gru = layers.Bidirectional(recurrent(layers.GRU, 2, 4))
            average = layers.GlobalAveragePooling1D
            heads = [lstm()(rows), gru(rows), average()(rows)]
            heads.append(average()(layers.Attention()([rows, rows])))
            model = compiled(k.Model(ids, dense()(layers.Concatenate()(heads))))
        return fit(model, PADDED)

    has_the_losses_of_stock_layers(train)


def check_masks_in_a_sequential_model_without_an_input():
    def train(side):
        with side.scope():
            embedding = side.embedding(mask_zero=True)
            model = compiled(k.Sequential([embedding, lstm(), dense()]))
        return fit(model, PADDED)

    has_the_losses_of_stock_layers(train)


def check_masks_in_a_subclassed_model_without_training():
    def train(side):
        with side.scope():
            embedding = side.embedding(mask_zero=True)
            model = compiled(Plain(embedding, [lstm(), dense()]))
        return fit(model, PADDED)

    has_the_losses_of_stock_layers(train)


def check_a_global_norm_is_that_of_one_process_or_refused():
    def train(side):
        with side.scope():
            model = Plain(side.embedding(), [layers.Flatten(), dense()])
            model.compile(k.optimizers.SGD(0.5, global_clipnorm=0.05), "mse")
        return fit(model, IDS)

    if kind != "cluster":
        has_the_losses_of_stock_layers(train)
    elif api == "tf_keras":  # otherwise the workers' other weights would differ
        with raises(ValueError, "global_clipnorm cannot be used"):
            train(Ours)


if __name__ == "__main__":
    run_checks(globals())
