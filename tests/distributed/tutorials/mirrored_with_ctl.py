"""TensorFlow's tutorial "Custom training with tf.distribute.Strategy", step by step, on digits.

mirrored_with_ctl.py keras|tf_keras ours|stock DIRECTORY, which is empty
"""

import numpy as np
import tensorflow as tf
from digits import arrays, directory, distribute, each_loss, keras, network

import strategies

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"])
global_batch_size = 32 * strategy.num_replicas_in_sync
images, labels = arrays()
train_rows = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500])).shuffle(1500)
train_dataset = train_rows.batch(global_batch_size)
test_rows = tf.data.Dataset.from_tensor_slices((images[1500:], labels[1500:]))
test_dataset = test_rows.batch(global_batch_size)
train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
test_dist_dataset = strategy.experimental_distribute_dataset(test_dataset)

with strategy.scope():
    loss_object = each_loss()

    def compute_loss(labels, predictions, model_losses):
        loss = tf.nn.compute_average_loss(
            loss_object(labels, predictions), global_batch_size=global_batch_size
        )
        if model_losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
        return loss

    test_loss = keras.metrics.Mean(name="test_loss")
    train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    test_accuracy = keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
    model = network(keras.regularizers.L2(1e-5))
    optimizer = keras.optimizers.Adam(0.003)
    if keras.__name__ == "keras":  # it does not make its variables in a tf.function by itself
        optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = compute_loss(labels, predictions, model.losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    train_accuracy.update_state(labels, predictions)
    return loss


def test_step(inputs):
    images, labels = inputs
    predictions = model(images, training=False)
    test_loss.update_state(loss_object(labels, predictions))
    test_accuracy.update_state(labels, predictions)


@tf.function
def distributed_train_step(inputs):
    losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


@tf.function
def distributed_test_step(inputs):
    return strategy.run(test_step, args=(inputs,))


for _ in range(3):
    total, batches = 0.0, 0
    for inputs in train_dist_dataset:
        total += distributed_train_step(inputs)
        batches += 1
    assert batches == 24 and np.isfinite(total)
    trained = float(train_accuracy.result().numpy())
    for metric in (test_loss, train_accuracy, test_accuracy):
        metric.reset_state()
    for inputs in test_dist_dataset:
        distributed_test_step(inputs)
    checkpoint.save(f"{directory}/checkpoints/ckpt")
assert trained > 0.8 and test_accuracy.result().numpy() > 0.75

# The checkpoint is read with no strategy, and gives the same accuracy.
eval_accuracy = keras.metrics.SparseCategoricalAccuracy()
new_model = network()
tf.train.Checkpoint(model=new_model).restore(
    tf.train.latest_checkpoint(f"{directory}/checkpoints")
).expect_partial()


@tf.function
def eval_step(images, labels):
    eval_accuracy.update_state(labels, new_model(images, training=False))


for images, labels in test_dataset:
    eval_step(images, labels)
np.testing.assert_allclose(eval_accuracy.result(), test_accuracy.result(), rtol=1e-5)

# Iterators, and a whole epoch in one function.
iterator = iter(train_dist_dataset)
for _ in range(10):
    assert np.isfinite(distributed_train_step(next(iterator)))


@tf.function
def distributed_train_epoch(dataset):
    total, batches = 0.0, 0
    for inputs in dataset:
        losses = strategy.run(train_step, args=(inputs,))
        total += strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        batches += 1
    return total / tf.cast(batches, tf.float32)


before = float(distributed_train_epoch(train_dist_dataset))
for _ in range(2):
    after = float(distributed_train_epoch(train_dist_dataset))
assert after < before, (before, after)
if distribute is strategies:
    strategies.verify_equal(strategy, model.variables)
print("passed")
