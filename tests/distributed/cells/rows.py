"""`DistributedEmbedding`, whose rows are divided among the workers or are on parameter servers."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

import strategies
from cells.lab import BATCH, CLASSES, Cell, Lab, check
from strategies.collectives.workers import collectives_of
from strategies.follow import Follower
from tests.support.embeddings import embedding_of

EXAMPLES, FEATURES, IDS, ROOM = 64, 4, 1000, 48


def _clicks() -> tuple[np.ndarray, np.ndarray]:
    """Returns ids, of which some are frequent, and which class each example is in."""
    ids = np.random.default_rng(1).zipf(1.4, [EXAMPLES, FEATURES]) % IDS
    return ids.astype(np.int64) - IDS // 2, ids[:, 0] % CLASSES


def _model(lab: Lab, *tables: Any, optimizer: Any = None, **options: Any) -> tuple[Any, Any]:
    """Returns a compiled model and its layer, with the same weights in every run.

    Args:
      lab: what makes models.
      *tables: the table of each feature; without any, all features use one table.
      optimizer: makes the optimizer.
      **options: arguments of the layer if there is one table.
    """
    lab.keras.utils.set_random_seed(1)
    layers, embedding = lab.keras.layers, embedding_of(lab.keras.__name__)
    with lab.strategy.scope():
        inputs = layers.Input([FEATURES], dtype="int64")
        if tables:
            features = {f"f{n}": strategies.FeatureConfig(each) for n, each in enumerate(tables)}
            layer = embedding(features=features, name="rows")
            columns = {name: inputs[:, n : n + 1] for n, name in enumerate(features)}
            found = [layers.Flatten()(each) for each in layer(columns).values()]
            rows = layers.Concatenate()(found)
        else:
            layer = embedding(4, name="rows", **options)
            rows = layers.Flatten()(layer(inputs))
        model = lab.keras.Model(inputs, layers.Dense(CLASSES)(rows))
    lab.compile(model, optimizer or (lambda: lab.keras.optimizers.Adam(0.02)))
    return model, layer


def _fit(model: Any, layer: Any, dataset: Any = None) -> dict[str, Any]:
    """Trains a model, and returns its logs, rows and other weights."""
    data, options = ([dataset], {}) if dataset is not None else (_clicks(), {"batch_size": BATCH})
    history = model.fit(*data, epochs=3, shuffle=False, verbose=0, **options).history
    check(all(np.isfinite(values).all() for values in history.values()), f"logs {history}")
    check(history["loss"][-1] < history["loss"][0], f"the loss does not fall: {history}")
    return {"logs": history, **_values(model, layer)}


def _values(model: Any, layer: Any) -> dict[str, Any]:
    """Returns the rows of all tables on all workers, and the weights of the last layer."""
    rows, collectives = {}, collectives_of(model.distribute_strategy)
    for name in layer.statistics():
        ids, values = map(collectives.all_gather, map(tf.constant, layer.rows(name)))
        check(np.isfinite(values).all(), f"the rows of {name} are no numbers")
        order = np.argsort(ids)
        rows[name] = {"ids": ids.numpy()[order].tolist(), "rows": values.numpy()[order].tolist()}
    return {"rows": rows, "weights": [each.numpy().tolist() for each in model.layers[-1].weights]}


def adam(lab: Lab) -> dict[str, Any]:
    """`DistributedEmbedding` with Adam"""
    return _fit(*_model(lab))


def several_tables(lab: Lab) -> dict[str, Any]:
    """Several tables, one of them with an optimizer of its own"""
    tables = [strategies.TableConfig(f"table{number}", 4) for number in range(FEATURES - 1)]
    own = lab.keras.optimizers.Adagrad(0.1)
    return _fit(*_model(lab, *tables, strategies.TableConfig("own", 4, optimizer=own)))


def admission(lab: Lab) -> dict[str, Any]:
    """Rows only for ids that occur twice"""
    return _fit(*_model(lab, admission=strategies.Admission(2)))


def eviction(lab: Lab) -> dict[str, Any]:
    """Eviction of old rows, every second step"""
    return _fit(*_model(lab, eviction=strategies.Eviction(age=3, every=2)))


def bounded(lab: Lab) -> dict[str, Any]:
    """A full table that evicts rows"""
    model, layer = _model(lab, input_dim=ROOM, overflow="evict")
    facts = _fit(model, layer)
    (counts,) = layer.statistics().values()
    check(counts["rows"] <= ROOM and counts["evicted"] > 0, f"statistics {counts}")
    return facts


def sixteen_bits(lab: Lab) -> dict[str, Any]:
    """Rows and exchanges of 16 bits"""
    table = strategies.TableConfig("all", 4, row_dtype="bfloat16", exchange_dtype="bfloat16")
    return _fit(*_model(lab, *[table] * FEATURES))


def prefetched(lab: Lab) -> dict[str, Any]:
    """`prefetch_rows`"""
    model, layer = _model(lab)
    dataset = tf.data.Dataset.from_tensor_slices(_clicks()).batch(BATCH)
    return _fit(model, layer, strategies.prefetch_rows(dataset, layer, lambda ids, _: ids))


def clipped(lab: Lab) -> dict[str, Any]:
    """`global_clipnorm`"""
    sgd = lab.keras.optimizers.SGD
    return _fit(*_model(lab, optimizer=lambda: sgd(0.5, momentum=0.5, global_clipnorm=0.5)))


def saved(lab: Lab) -> dict[str, Any]:
    """`save_rows` with a delta, and `load_rows`"""
    model, layer = _model(lab)
    _fit(model, layer)
    directory = _common_directory("saved")
    layer.save_rows(directory)
    _fit(model, layer)
    layer.save_rows(directory, delta=True)
    expected = _values(model, layer)["rows"]
    strategies.barrier(lab.strategy)
    _fit(model, layer)
    layer.load_rows(directory)
    check(_values(model, layer)["rows"] == expected, "other rows were loaded than saved")
    strategies.barrier(lab.strategy)
    return {"rows": expected}


def saved_with_the_model(lab: Lab) -> dict[str, Any]:
    """`save_weights` and `load_weights` with rows"""
    model, layer = _model(lab)
    facts = _fit(model, layer)
    path = _common_directory("weights") + f"/model{'.weights.h5' if lab.is_keras_3 else ''}"
    with strategies.writing(path, lab.strategy) as own:
        model.save_weights(own)
    layer.set_rows(np.array([1]), np.ones([1, 4], np.float32))
    model.load_weights(path)
    check(_values(model, layer)["rows"] == facts["rows"], "other rows were loaded than saved")
    strategies.barrier(lab.strategy)
    return facts


def served(lab: Lab) -> dict[str, Any]:
    """`export`, and a served model that follows the training"""
    model, layer = _model(lab)
    _fit(model, layer)
    directory = _common_directory("served")
    strategies.export(model, f"{directory}/model")
    facts = _fit(model, layer)
    strategies.export_delta(model, f"{directory}/deltas")
    follower = Follower(f"{directory}/model", f"{directory}/deltas")
    check(follower.update() == [1], "the delta was not found")
    ids = _clicks()[0][:BATCH]
    (predicted,) = follower.model.signatures["serving_default"](tf.constant(ids)).values()
    is_first = strategies.worker_rank(lab.strategy) == 0  # in "geo", each has its own weights
    expected = model.predict(ids, batch_size=BATCH, verbose=0)
    is_near = np.allclose(predicted.numpy(), expected, atol=1e-5)
    check(is_near or not is_first, "other predictions are served")
    return facts | {"predicted": predicted.numpy().tolist()}


def _common_directory(name: str) -> str:
    """Returns an empty directory that is the same on all workers of a launcher."""
    above = os.path.join(tempfile.gettempdir(), f"cells-{os.getppid()}")
    path = os.path.join(above, name)
    os.makedirs(path, exist_ok=True)
    return path


CELLS = [
    Cell(adam),
    Cell(several_tables),
    Cell(admission),
    Cell(eviction),
    # Each shard has a part of the room, and evicts rows of its own.
    Cell(bounded, tolerance=None),
    Cell(sixteen_bits, tolerance=0.05),
    Cell(prefetched),
    # Keras 3 clips each replica's gradient before the sum, as it does under stock strategies.
    Cell(clipped, tolerance=None),
    Cell(saved),
    Cell(saved_with_the_model),
    Cell(served),
]
