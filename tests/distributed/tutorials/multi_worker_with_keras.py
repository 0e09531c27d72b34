"""TensorFlow's tutorial "Multi-worker training with Keras", step by step, on digits.

multi_worker_with_keras.py keras|tf_keras ours|stock DIRECTORY, which all workers see and is empty
"""

import json
import os

import numpy as np
import tensorflow as tf
from digits import arrays, dataset, directory, distribute, is_chief, keras, network, path_to_write

import strategies

strategy = distribute.MultiWorkerMirroredStrategy()
workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
assert strategy.num_replicas_in_sync == workers
task = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
per_worker_batch_size = 32
multi_worker_dataset = dataset(per_worker_batch_size * workers)


def compiled():
    with strategy.scope():
        model = network()
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
            metrics=["accuracy"],
        )
    return model


# Train.
model = compiled()
history = model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=30, verbose=2).history
assert history["accuracy"][-1] > 0.8, history

# Each worker reads everything: no sharding by the strategy.
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
without_sharding = multi_worker_dataset.with_options(options)
model.fit(without_sharding, epochs=1, steps_per_epoch=20, verbose=0)

# Evaluate and predict.
images, labels = arrays()
rows = tf.data.Dataset.from_tensor_slices((images, labels)).batch(per_worker_batch_size * workers)
_, accuracy = model.evaluate(rows, verbose=0, steps=20)
assert accuracy > 0.85, accuracy

# Save: every worker calls it, the chief's file is the one that stays.
path = f"{directory}/model.keras"
mine = path_to_write(path, *task)
model.save(mine)
if not is_chief(*task):
    tf.io.gfile.rmtree(os.path.dirname(mine))
else:
    loaded = keras.models.load_model(path)
    same = [(a == b).all() for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True)]
    assert all(same)
    loaded.fit(dataset(per_worker_batch_size), epochs=1, steps_per_epoch=10, verbose=0)

# A checkpoint, in the same way, and training that goes on from it.
checkpoint = tf.train.Checkpoint(model=model)
place = f"{directory}/checkpoints"
mine = path_to_write(place, *task)
manager = tf.train.CheckpointManager(checkpoint, directory=mine, max_to_keep=1)
manager.save()
if not is_chief(*task):
    tf.io.gfile.rmtree(mine)
# (The tutorial goes on in one process; with several, the others wait for the chief's files.)
strategy.reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0), axis=None)
written = model.get_weights()
model.set_weights([np.zeros_like(weight) for weight in written])
checkpoint.restore(tf.train.latest_checkpoint(place))
for weight, other in zip(model.get_weights(), written, strict=True):
    np.testing.assert_array_equal(weight, other)
model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=10, verbose=0)

# Backup in each epoch, and checkpoints by callbacks.
callbacks = [
    keras.callbacks.BackupAndRestore(f"{directory}/backup"),
    keras.callbacks.ModelCheckpoint(f"{directory}/kept.weights.h5", save_weights_only=True),
]
if keras.__name__ == "keras":  # tf_keras's know the workers, Keras 3's have to be told
    callbacks = [strategies.callbacks.on_first_worker(each, strategy) for each in callbacks]
model = compiled()
model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=15, callbacks=callbacks, verbose=0)
strategy.reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0), axis=None)
assert tf.io.gfile.exists(f"{directory}/kept.weights.h5")
if distribute is strategies:
    strategies.verify_equal(strategy, model.variables)
print("passed")
