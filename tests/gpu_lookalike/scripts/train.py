"""Trains a model on devices that look like GPUs, or on as many CPUs, and prints what came of it.

Command line: the model, the strategy, and options of it.
"""

import hashlib
import json
import sys

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
# The optimizer would put in operations for which only the wheel with CUDA has kernels.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(1)
RING = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)


def replace_nccl():
    """Has TensorFlow's ring on the host stand for NCCL, which the wheel has only with CUDA."""
    from strategies.collectives.tensorflow import TensorFlowCollectives
    from strategies.utils.devices import HOST

    TensorFlowCollectives._placement = lambda self, kind, dtype: (HOST, "ring")


def make_strategy():
    if STRATEGY == "mirrored":
        reduce = {"options": strategies.ReductionOptions(mode="reduce", split_above=8)}
        return strategies.MirroredStrategy(
            num_replicas=2,
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
            **(reduce if "reduce" in OPTIONS else {}),
        )
    if STRATEGY == "central":
        return strategies.CentralStorageStrategy(num_replicas=2)
    if STRATEGY == "workers":
        if "ring" in OPTIONS:
            return strategies.MultiWorkerMirroredStrategy(communication_options=RING)
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
    # Keras would choose cuDNN's, for which only the wheel with CUDA has kernels. tf_keras's
    # Embedding needs a kernel of GatherV2 on the variable's device, which these have not.
    if "tf_keras" in OPTIONS:
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
    draw = np.random.default_rng(0)
    labels = draw.normal(size=[64, 1]).astype("float32")
    if MODEL == "embedding":
        return {"a": draw.integers(0, 100, [64, 5]), "b": draw.integers(0, 100, [64, 3])}, labels
    return (
        draw.normal(size=[64, 8, 8, 3]).astype("float32"),
        draw.integers(0, 100, [64, 6]),
    ), labels


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
print(json.dumps(found), flush=True)
