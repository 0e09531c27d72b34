"""TensorFlow's tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy".

multi_worker_with_ctl.py keras|tf_keras ours|stock DIRECTORY, which all workers see and is empty
"""

import os

import tensorflow as tf
from digits import (
    dataset,
    directory,
    distribute,
    each_loss,
    is_chief,
    keras,
    network,
    path_to_write,
)

import strategies

strategy = distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
task = resolver.task_type, resolver.task_id
assert "worker" in resolver.cluster_spec().as_dict()
per_worker_batch_size, epochs, steps_per_epoch = 32, 3, 25
global_batch_size = per_worker_batch_size * strategy.num_replicas_in_sync


def dataset_fn(context):
    batch_size = context.get_per_replica_batch_size(global_batch_size)
    assert batch_size == per_worker_batch_size
    return dataset(batch_size).shard(context.num_input_pipelines, context.input_pipeline_id)


with strategy.scope():
    model = network(keras.regularizers.L2(1e-5))
    multi_worker_dataset = strategy.distribute_datasets_from_function(dataset_fn)
    optimizer = keras.optimizers.RMSprop(0.001)
    if keras.__name__ == "keras":  # it does not make its variables in a tf.function by itself
        optimizer.build(model.trainable_variables)
    train_accuracy = keras.metrics.SparseCategoricalAccuracy()
    loss_object = each_loss()


@tf.function
def train_step(iterator):
    def replica(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = tf.nn.compute_average_loss(loss_object(labels, predictions))
            if model.losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_accuracy.update_state(labels, predictions)
        return loss

    losses = strategy.run(replica, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


def train(checkpoint, manager, own):
    """Returns the loss of each epoch that it trained."""
    trained = []
    while epoch.numpy() < epochs:
        iterator = iter(multi_worker_dataset)
        total, batches = 0.0, 0
        while step_in_epoch.numpy() < steps_per_epoch:
            total += train_step(iterator)
            batches += 1
            step_in_epoch.assign_add(1)
        trained.append(float(total / batches))
        print(f"epoch {epoch.numpy()}: {train_accuracy.result().numpy():.2f}, {trained[-1]:.3f}")
        accuracies.append(float(train_accuracy.result().numpy()))
        train_accuracy.reset_state()
        epoch.assign_add(1)
        step_in_epoch.assign(0)
        manager.save()
        if not is_chief(*task):
            tf.io.gfile.rmtree(own)
    return trained


epoch = tf.Variable(tf.constant(0, tf.int64), name="epoch")
step_in_epoch = tf.Variable(tf.constant(0, tf.int64), name="step_in_epoch")
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
place = f"{directory}/checkpoints"
own = path_to_write(place, *task)
manager = tf.train.CheckpointManager(checkpoint, directory=own, max_to_keep=1)
assert tf.train.latest_checkpoint(place) is None
accuracies: list = []
losses = train(checkpoint, manager, own)
assert losses[-1] < losses[0] / 2 and accuracies[-1] > 0.75, (losses, accuracies)

# Started again, it goes on from the chief's last checkpoint.
strategy.reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0), axis=None)
epoch.assign(0)
checkpoint.restore(tf.train.latest_checkpoint(place))
assert epoch.numpy() == epochs
epochs += 1
assert len(train(checkpoint, manager, own)) == 1
assert is_chief(*task) or not os.path.exists(own)
if distribute is strategies:
    strategies.verify_equal(strategy, model.variables)
print("passed")
