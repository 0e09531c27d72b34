"""Trains a model on GPUs, or on as many CPUs, and prints what came of it as JSON.

Command line: the model, the strategy, and options:

* alone: one replica, where two are the default;
* logical: both replicas are on one GPU, divided into two;
* lookalike: the GPUs only look like some, see tests/gpu_lookalike;
* stock: TensorFlow's own strategy, for its speed;
* deterministic, mixed, prefetch, reduce, ring, tf_keras: as their names say;
* timed: the examples per second, too.
"""

import hashlib
import json
import sys
import time

import numpy as np
import tensorflow as tf

import strategies

MODEL, STRATEGY, *OPTIONS = sys.argv[1:]
GPUS = len(tf.config.list_physical_devices("GPU"))
if "tf_keras" in OPTIONS:
    import tf_keras as keras

    from strategies.embedding.tf_keras_layer import DistributedEmbedding
else:
    import keras

    from strategies import DistributedEmbedding
IS_LOOKALIKE = "lookalike" in OPTIONS
REPLICAS = 1 if "alone" in OPTIONS else 2
TIMED_EXAMPLES, TIMED_BATCH = 65536 if GPUS else 4096, 1024
if IS_LOOKALIKE:
    # The optimizer would put in operations for which only the wheel with CUDA has kernels.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
elif GPUS:
    # float32 as on the CPU, with which numbers are compared, instead of TensorFloat-32.
    tf.config.experimental.enable_tensor_float_32_execution(False)
if "logical" in OPTIONS:
    half = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("GPU")[0], [half, half]
    )
if "deterministic" in OPTIONS:
    tf.config.experimental.enable_op_determinism()
RING = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)


def replace_nccl():
    """Has TensorFlow's ring on the host stand for NCCL, which the wheel has only with CUDA."""
    from strategies.collectives.tensorflow import TensorFlowCollectives
    from strategies.utils.devices import HOST

    TensorFlowCollectives._placement = lambda self, kind, dtype: (HOST, "ring")


def make_strategy():
    """Returns the strategy that the command line names."""
    if "stock" in OPTIONS:
        kind = "GPU" if GPUS else "CPU"
        return tf.distribute.MirroredStrategy([f"{kind}:{n}" for n in range(REPLICAS)])
    if STRATEGY == "mirrored":
        reduce = {"options": strategies.ReductionOptions(mode="reduce", split_above=8)}
        return strategies.MirroredStrategy(
            num_replicas=REPLICAS,
            cross_device_ops=tf.distribute.ReductionToOneDevice() if IS_LOOKALIKE else None,
            **(reduce if "reduce" in OPTIONS else {}),
        )
    if STRATEGY == "central":
        return strategies.CentralStorageStrategy(num_replicas=REPLICAS)
    if STRATEGY == "workers":
        if "ring" in OPTIONS:
            return strategies.MultiWorkerMirroredStrategy(communication_options=RING)
        if not IS_LOOKALIKE:
            return strategies.MultiWorkerMirroredStrategy()
        replace_nccl()
        # Between CPUs, the same sums: those of TensorFlow's ring.
        return strategies.MultiWorkerMirroredStrategy(
            communication="auto" if GPUS else "tensorflow"
        )
    return strategies.ParameterServerStrategy(mode=STRATEGY)


def dense_model():
    """A model of layers that have state, randomness and a sparse gradient."""
    layers = keras.layers
    image, words = keras.Input([8, 8, 3]), keras.Input([6], dtype="int64")
    pixels = layers.Conv2D(4, 3)(image)
    pixels = layers.ReLU()(layers.BatchNormalization()(pixels))
    pixels = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(pixels))
    # On what looks like a GPU, Keras would choose cuDNN's layer, for which only the wheel with CUDA
    # has kernels; and tf_keras's Embedding needs a kernel of GatherV2 on the variable's device.
    if not IS_LOOKALIKE:
        text = layers.GRU(4)(layers.Embedding(100, 4)(words))
    elif "tf_keras" in OPTIONS:
        vectors = layers.Dense(4)(layers.Lambda(lambda ids: tf.one_hot(ids, 100))(words))
        text = layers.GRU(4, reset_after=False)(vectors)
    else:
        text = layers.GRU(4, use_cudnn=False)(layers.Embedding(100, 4)(words))
    hidden = layers.Dense(16, "relu")(layers.Concatenate()([pixels, text]))
    return keras.Model([image, words], layers.Dense(1, dtype="float32")(hidden))


def embedding_model():
    """A model of tables whose rows come by admission, with an optimizer of their own."""
    inputs = {name: keras.Input([n], dtype="int64", name=name) for name, n in (("a", 5), ("b", 3))}
    admitted = strategies.TableConfig(
        "admitted", 8, admission=strategies.Admission(2), eviction=strategies.Eviction(age=100)
    )
    # Tables on parameter servers cannot have an optimizer of their own.
    is_served = STRATEGY not in ("mirrored", "central", "workers")
    plain = strategies.TableConfig(
        "plain", 8, optimizer=None if is_served else keras.optimizers.Adagrad(0.1)
    )
    rows = DistributedEmbedding(
        features={
            "a": strategies.FeatureConfig(admitted, "mean"),
            "b": strategies.FeatureConfig(plain, "sqrtn"),
        }
    )(inputs)
    joined = keras.layers.Concatenate()([rows["a"], rows["b"]])
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(joined))


def data():
    """Returns the model's inputs, and labels."""
    draw = np.random.default_rng(0)
    labels = draw.normal(size=[64, 1]).astype("float32")
    if MODEL == "embedding":
        return {"a": draw.integers(0, 100, [64, 5]), "b": draw.integers(0, 100, [64, 3])}, labels
    return (
        draw.normal(size=[64, 8, 8, 3]).astype("float32"),
        draw.integers(0, 100, [64, 6]),
    ), labels


def examples_per_second():
    """Returns the median speed of three epochs of a perceptron, after one that is not counted."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=[TIMED_EXAMPLES, 256]).astype("float32")
    with strategy.scope():
        layers = [keras.layers.Dense(1024, "relu") for _ in range(4)]
        wide = keras.Sequential([keras.Input([256]), *layers, keras.layers.Dense(1)])
        wide.compile("adam", "mse", jit_compile=False)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        wide.fit(x, x[:, :1], batch_size=TIMED_BATCH, verbose=0)
        seconds.append(time.perf_counter() - start)
    return TIMED_EXAMPLES / sorted(seconds[1:])[1]


strategy = make_strategy()
if "mixed" in OPTIONS:
    keras.mixed_precision.set_global_policy("mixed_float16")
keras.utils.set_random_seed(1)
with strategy.scope():
    model = embedding_model() if MODEL == "embedding" else dense_model()
    model.compile("adam", "mse", jit_compile=False)
inputs, labels = data()
found = {"gpus": GPUS, "replicas": list(strategy.extended.worker_devices)}
if "prefetch" in OPTIONS:
    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(16)
    options = tf.distribute.InputOptions(experimental_fetch_to_device=True)
    distributed = strategy.experimental_distribute_dataset(dataset, options)
    batch = next(iter(distributed))
    found["fetched"] = [
        value.device[-5:] for value in strategy.experimental_local_results(batch[1])
    ]
history = model.fit(inputs, labels, batch_size=16, epochs=2, verbose=0)
found["loss"] = history.history["loss"]
found["evaluated"] = np.ravel(model.evaluate(inputs, labels, batch_size=16, verbose=0)).tolist()
values = model.variables if "tf_keras" in OPTIONS else [v.value for v in model.variables]
found["variables"] = sorted({value.device[-5:] for value in values if hasattr(value, "device")})
predicted = np.asarray(model.predict(inputs, batch_size=16, verbose=0), np.float32)
found["predicted"] = hashlib.sha256(predicted.tobytes()).hexdigest()
found["near"] = float(np.abs(predicted).sum())
if "timed" in OPTIONS:
    found["examples_per_second"] = examples_per_second()
print(json.dumps(found), flush=True)
