"""What runs on a replica's device has a kernel for GPUs, except for what is listed with a reason.

gpu_kernels.py keras|tf_keras mirrored|central|workers|sync|async|half_async|geo [options]

The options are those of ReductionOptions, as JSON.
"""

import importlib
import json
import sys
from collections import Counter

import numpy as np
import tensorflow as tf

import strategies
from tests.support.checks import run_checks
from tests.support.embeddings import embedding_of
from tests.support.gpu_kernels import copies, functions, without_gpu_kernel

# TensorFlow runs these on the host instead.
ALLOWED = {
    # The words of errors that a step may end with.
    "Const[dtype=string]",
    # The others are Keras's own, under stock strategies too.
    # Keras 3: whether rows of a gradient are finite, for the scale of a float16 loss.
    "TensorScatterUpdate[T=bool,Tindices=int32]",
    "TensorScatterUpdate[T=bool,Tindices=int64]",
    # Keras 3: which rows an optimizer without a sparse update of its own has to change.
    "ScatterNd[Tindices=int32,T=bool]",
    "ScatterNd[Tindices=int64,T=bool]",
}
api, kind, *given = sys.argv[1:]
options = {"options": strategies.ReductionOptions(**json.loads(given[0]))} if given else {}
keras = importlib.import_module(api)
DistributedEmbedding = embedding_of(api)
if kind in ("mirrored", "central"):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    make = {"mirrored": strategies.MirroredStrategy, "central": strategies.CentralStorageStrategy}
    strategy = make[kind](["CPU:1", "CPU:2"], **options)
elif kind == "workers":
    # The first replica is on CPU:0, as what is pinned. The second one has the same nodes.
    strategy = strategies.MultiWorkerMirroredStrategy(num_replicas=2, **options)
else:
    strategy = strategies.ParameterServerStrategy(mode=kind, num_replicas=2)
is_on_servers = isinstance(strategy, strategies.ParameterServerStrategy)
random = np.random.default_rng(0)


def check_layers_of_keras():
    def make():
        pictures, words = keras.Input([8, 8, 3]), keras.Input([6], dtype="int64")
        seen = keras.layers.Conv2D(4, 3)(pictures)
        seen = keras.layers.ReLU()(keras.layers.BatchNormalization()(seen))
        seen = keras.layers.Dropout(0.5)(keras.layers.GlobalAveragePooling2D()(seen))
        read = keras.layers.LSTM(4)(keras.layers.Embedding(100, 4)(words))
        both = keras.layers.Dense(16, "relu")(keras.layers.Concatenate()([seen, read]))
        return keras.Model([pictures, words], keras.layers.Dense(3, dtype="float32")(both))

    x = [random.normal(size=[64, 8, 8, 3]).astype("float32"), random.integers(0, 100, [64, 6])]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trains_on_gpus(make, loss, x, random.integers(0, 3, [64]))


def check_layers_in_half_precision():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        check_layers_of_keras()
    finally:
        keras.mixed_precision.set_global_policy("float32")


def check_tables_of_rows():
    lists = strategies.TableConfig(
        "lists", 8, admission=strategies.Admission(2), eviction=strategies.Eviction(age=100)
    )
    shared = strategies.TableConfig("shared", 8, input_dim=50, overflow="share")
    own = strategies.TableConfig("own", 4, optimizer="adagrad")
    if is_on_servers:  # where these are refused
        shared = strategies.TableConfig("shared", 8, input_dim=200)
        own = strategies.TableConfig("own", 4)

    def make():
        inputs = {
            name: keras.Input([length], dtype="int64", name=name)
            for name, length in (("a", None), ("b", 3))
        }
        layer = DistributedEmbedding(
            features={
                "a": strategies.FeatureConfig(lists, "mean"),
                "b": strategies.FeatureConfig(shared, "sqrtn"),
                "c": strategies.FeatureConfig(own, "sum"),
            }
        )
        rows = layer({**inputs, "c": inputs["b"]})
        return keras.Model(
            inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(list(rows.values())))
        )

    x = {"a": random.integers(0, 100, [64, 5]), "b": random.integers(0, 100, [64, 3])}
    trains_on_gpus(make, "mse", x, random.normal(size=[64, 1]).astype("float32"))


def check_a_step_copies_ids_to_the_host_and_rows_and_gradients_once():
    before = functions()
    with strategy.scope():
        ids = keras.Input([5], dtype="int64")
        rows = DistributedEmbedding(8, combiner="mean")(ids)
        model = keras.Model(ids, keras.layers.Dense(1)(rows))
        model.compile("adam", "mse")
    model.fit(random.integers(0, 100, [64, 5]), np.ones([64, 1]), batch_size=16, verbose=0)
    found = copies(functions() - before)
    replicas = strategy.num_replicas_in_sync
    of_rows = [each for each in found if "embedding" in each.of]
    kinds = Counter((each.to_host, each.type) for each in of_rows)
    expected = [(True, "int64"), (False, "float"), (True, "float")]  # ids, rows, gradients
    assert kinds == dict.fromkeys(expected, replicas), found
    # The table is updated with the optimizer's step and learning rate.
    assert len(found) - len(of_rows) <= 2, found


def trains_on_gpus(make, loss, x, y):
    before = functions()
    with strategy.scope():
        model = make()
        model.compile("adam", loss, metrics=["mae"] if loss == "mse" else ["accuracy"])
    model.fit(x, y, batch_size=16, verbose=0)
    model.evaluate(x, y, batch_size=16, verbose=0)
    model.predict(x, batch_size=16, verbose=0)
    found = {str(each): count for each, count in without_gpu_kernel(functions() - before).items()}
    assert found.keys() <= ALLOWED, found


if __name__ == "__main__":
    run_checks(globals())
