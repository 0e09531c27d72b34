"""Models as people write them: DistributedEmbedding in place of a stock Embedding, same losses.

embedding_models.py DIRECTORY none|mirrored|cluster [--mode MODE] [keras|tf_keras ...] [CHECK ...]
"none" trains with the stock layers first and saves their losses to DIRECTORY; the others compare.
"""

import argparse
import contextlib
import importlib
import json
from pathlib import Path

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=Path)
parser.add_argument("kind", choices=["none", "mirrored", "cluster"])
parser.add_argument("--mode", default="sync")
parser.add_argument("only", nargs="*")
arguments = parser.parse_intermixed_args()
kind, in_step = arguments.kind, arguments.mode == "sync"
strategy = {
    "none": tf.distribute.get_strategy,
    "mirrored": lambda: strategies.MirroredStrategy(num_replicas=2),
    "cluster": lambda: strategies.from_tf_config(mode=arguments.mode),
}[kind]()

ROWS, LENGTH, WIDTH = 16, 4, 3
IDS = np.arange(1, 1 + ROWS * LENGTH).reshape([ROWS, LENGTH])
UNSEEN = IDS + 1000
PADDED = np.where(np.arange(LENGTH) <= np.arange(ROWS)[:, None] % LENGTH, IDS, 0)
LABELS = (np.arange(ROWS) % 2).astype("float32")[:, None]
EPOCHS = 40


def scope():
    return contextlib.nullcontext() if kind == "none" else strategy.scope()


class Api:
    """What Keras 3 and tf_keras have by the same names.

    Args:
      name: of the package.
      is_stock: whether the embedding is its own.
    """

    def __init__(self, name, is_stock):
        self.name = name
        self.k = k = importlib.import_module(name)
        ours = importlib.import_module(f"strategies.embedding.{name}_layer").DistributedEmbedding
        self.embedding = (
            (lambda **options: k.layers.Embedding(1 + IDS.size, WIDTH, "ones", **options))
            if is_stock
            else lambda **options: ours(WIDTH, embeddings_initializer="ones", **options)
        )

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

        self.plain = Plain

    def start(self, seed):
        return self.k.initializers.RandomNormal(0.0, 0.3, seed)

    def dense(self):
        return self.k.layers.Dense(1, kernel_initializer=self.start(1))

    def recurrent(self, layer, units, seed):
        return layer(
            units,
            kernel_initializer=self.start(seed),
            recurrent_initializer=self.start(seed + 1),
        )

    def lstm(self):
        return self.recurrent(self.k.layers.LSTM, 3, 2)

    def compiled(self, model):
        model.compile(self.k.optimizers.Adam(0.05), "mse")
        return model

    def bags(self):
        """A subclassed model without `training`."""
        layers = self.k.layers
        sum_of_bag = layers.Lambda(lambda x: tf.reduce_sum(x, 1))
        return self.compiled(self.plain(self.embedding(), [sum_of_bag, self.dense()]))

    def flat(self):
        """The same as `bags`, of layers that are saved."""
        heads = [self.k.layers.Flatten(), self.dense()]
        return self.compiled(self.plain(self.embedding(), heads))


def fit(model, ids, epochs=8, rows=ROWS):
    history = model.fit(ids, LABELS, epochs=epochs, batch_size=rows, shuffle=False, verbose=0)
    return history.history["loss"]


def everyones(layer):
    ids = collectives_of(strategy).all_gather(tf.constant(layer.rows()[0])).numpy()
    return np.sort(ids).tolist()


def lookups(layer):
    (numbers,) = layer.statistics().values()
    return numbers["lookups"]


def no_training_argument(api, is_stock):
    """A subclassed model without `training`: rows in fit, none elsewhere."""
    with scope():
        model = api.bags()
    if not is_stock:
        model.evaluate(IDS, LABELS, batch_size=ROWS, verbose=0)
        assert everyones(model.embedding) == []
    losses = fit(model, IDS, EPOCHS)
    assert losses[-1] < 0.01 or not in_step, losses
    if not is_stock:
        for ids in (IDS, UNSEEN):
            model.evaluate(ids, LABELS, batch_size=ROWS, verbose=0)
            model.predict(ids, batch_size=ROWS, verbose=0)
            model.embedding(ids)
        assert everyones(model.embedding) == IDS.ravel().tolist()
        assert lookups(model.embedding) == EPOCHS * IDS.size
    return losses


def custom_loop(api, is_stock):
    """A loop of one's own with `model(x)` under a tape."""
    with scope():
        model = api.bags()
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
        return strategy.run(replica, args=(ids, labels))

    data = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(ROWS).repeat(8)
    data = strategy.experimental_distribute_dataset(data)
    losses = [float(strategy.reduce("SUM", step(*batch), axis=None)) for batch in data]
    if not is_stock:
        model.embedding(UNSEEN)
        assert everyones(model.embedding) == IDS.ravel().tolist()
    return losses


def loaded(api, is_stock):
    """A subclassed model that is loaded goes on where it was saved."""
    with scope():
        model = api.flat()
    losses = fit(model, IDS)
    if is_stock:
        return [*losses, *fit(model, IDS)]
    path = arguments.directory / f"{kind}-{api.name}.keras"
    with strategies.writing(path, strategy) as own:
        model.save(own)
    with scope():
        again = api.k.models.load_model(path, custom_objects={"Plain": api.plain})
    steps = [int(each.optimizer.iterations.numpy()) for each in (model, again)]
    assert steps[0] == steps[1] >= 8, steps
    assert everyones(again.embedding) == IDS.ravel().tolist()
    expected, found = (each.predict(IDS, batch_size=ROWS, verbose=0) for each in (model, again))
    np.testing.assert_array_equal(found, expected)
    return [*losses, *fit(again, IDS)]


def no_input(api, is_stock):
    """A Sequential model that is made without an Input, and int64 ids."""
    layers = api.k.layers
    with scope():
        heads = [layers.GlobalAveragePooling1D(), api.dense()]
        model = api.compiled(api.k.Sequential([api.embedding(), *heads]))
    return fit(model, IDS)


def float_input(api, is_stock):
    """An Input of Keras's default dtype."""
    layers = api.k.layers
    with scope():
        ids = api.k.Input([LENGTH])
        outputs = api.dense()(layers.Flatten()(api.embedding()(ids)))
        model = api.compiled(api.k.Model(ids, outputs))
    return fit(model, IDS)


def masked_functional(api, is_stock):
    """What takes masks: recurrent layers, both directions, means, attention."""
    layers = api.k.layers
    with scope():
        ids = api.k.Input([LENGTH], dtype="int64")
        rows = api.embedding(mask_zero=True)(ids)
        assert getattr(rows, "_keras_mask", None) is not None
        gru = layers.Bidirectional(api.recurrent(layers.GRU, 2, 4))
        average = layers.GlobalAveragePooling1D
        heads = [api.lstm()(rows), gru(rows), average()(rows)]
        heads.append(average()(layers.Attention()([rows, rows])))
        model = api.compiled(api.k.Model(ids, api.dense()(layers.Concatenate()(heads))))
    return fit(model, PADDED)


def masked_sequential(api, is_stock):
    """The same without an Input."""
    with scope():
        embedding = api.embedding(mask_zero=True)
        model = api.compiled(api.k.Sequential([embedding, api.lstm(), api.dense()]))
    return fit(model, PADDED)


def masked_subclassed(api, is_stock):
    """The same in a model without `training`."""
    with scope():
        embedding = api.embedding(mask_zero=True)
        model = api.compiled(api.plain(embedding, [api.lstm(), api.dense()]))
    return fit(model, PADDED)


CHECKS = [
    no_training_argument,
    custom_loop,
    loaded,
    no_input,
    float_input,
    masked_functional,
    masked_sequential,
    masked_subclassed,
]
names = [name for name in ("keras", "tf_keras") if name in arguments.only]
chosen = [check for check in CHECKS if check.__name__ in arguments.only]
for name in names or ["keras", "tf_keras"]:
    for check in chosen or CHECKS:
        file = arguments.directory / f"{name}-{check.__name__}.json"
        if kind == "none":
            file.write_text(json.dumps(check(Api(name, is_stock=True), True)))
        losses = check(Api(name, is_stock=False), False)
        expected = json.loads(file.read_text())
        what = f"{name} {check.__doc__}"
        if in_step:  # elsewhere they depend on who comes first
            np.testing.assert_allclose(losses, expected, rtol=2e-3, atol=2e-4, err_msg=what)
        print(what, flush=True)
print("passed")
