"""TensorFlow's tutorial "Distributed training with Keras", step by step, on digits.

mirrored_with_keras.py keras|tf_keras ours|stock DIRECTORY, which is empty
"""

import os

import numpy as np
import tensorflow as tf
from digits import arrays, directory, distribute, keras, network

import strategies

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
batch_size = 32 * strategy.num_replicas_in_sync
images, labels = arrays()
rows = tf.data.Dataset.from_tensor_slices((images * 16, labels))


def scaled(image, label):
    return tf.cast(image, tf.float32) / 16, label


train_dataset = rows.take(1500).map(scaled).cache().shuffle(1500).batch(batch_size)
eval_dataset = rows.skip(1500).map(scaled).batch(batch_size)


def compile_(model):
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.Adam(0.001),
        metrics=["accuracy"],
    )


with strategy.scope():
    model = network()
    compile_(model)


def decay(epoch):
    return 3e-3 if epoch < 3 else 1e-3


class LearningRates(keras.callbacks.Callback):
    seen: list = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate.numpy()))


# tf_keras cannot load its own HDF5 files where a model was evaluated, under stock strategies too.
suffix = ".weights.h5" if keras.__name__ == "keras" else ""
callbacks = [
    keras.callbacks.TensorBoard(log_dir=f"{directory}/logs"),
    keras.callbacks.ModelCheckpoint(directory + "/{epoch}" + suffix, save_weights_only=True),
    keras.callbacks.LearningRateScheduler(decay),
    LearningRates(),
]
model.fit(train_dataset, epochs=4, callbacks=callbacks, verbose=0)
np.testing.assert_allclose(LearningRates.seen, [3e-3, 3e-3, 3e-3, 1e-3], rtol=1e-6)
names = [f"{epoch}{suffix or '.index'}" for epoch in (1, 2, 3, 4)]
assert set(names) < set(os.listdir(directory)), os.listdir(directory)
assert os.listdir(f"{directory}/logs/train")

weights = model.get_weights()
model.set_weights([np.zeros_like(weight) for weight in weights])
model.load_weights(f"{directory}/4{suffix}")
loss, accuracy = model.evaluate(eval_dataset, verbose=0)
assert accuracy > 0.85, accuracy

# Saved, and loaded with no strategy and under it.
path = f"{directory}/model.keras"
model.save(path)
alone = keras.models.load_model(path)
compile_(alone)
np.testing.assert_allclose(alone.evaluate(eval_dataset, verbose=0), [loss, accuracy], rtol=1e-4)
with strategy.scope():
    replicated = keras.models.load_model(path)
    compile_(replicated)
found = replicated.evaluate(eval_dataset, verbose=0)
np.testing.assert_allclose(found, [loss, accuracy], rtol=1e-4)
if distribute is strategies:
    strategies.verify_equal(strategy, model.variables)
print("passed")
