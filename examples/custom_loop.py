"""Trains on handwritten digits with a loop of its own, on one worker or on many.

    $ tf-config run --workers 2 examples/custom_loop.py
    [worker 0] epoch 1: loss 1.8928
    ...
    [worker 0] epoch 10: loss 0.1340
    [worker 0] test accuracy: 0.9667

The loop is that of TensorFlow's guide to custom training: `experimental_distribute_dataset` cuts
each batch, `run` calls a function on every replica, `reduce` sums what they return. The data are
the 1,797 images of 8x8 pixels that scikit-learn carries.
"""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import strategies

EPOCHS, BATCH_SIZE = 10, 64  # of all replicas together


def main():
    keras.utils.set_random_seed(1)
    strategy = strategies.from_tf_config()
    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32") / 16
    x, test_x, y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0)
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(BATCH_SIZE)
    test = tf.data.Dataset.from_tensor_slices((test_x, test_y)).batch(BATCH_SIZE)
    train = strategy.experimental_distribute_dataset(train)
    test = strategy.experimental_distribute_dataset(test)

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([64]), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
        )
        optimizer = keras.optimizers.Adam(2e-3)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def train_replica(images, labels):
        with tf.GradientTape() as tape:
            # Gradients are summed over the replicas, so the divisor is the batch of all of them.
            loss = loss_of(labels, model(images, training=True)) / BATCH_SIZE
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def count_right(images, labels):
        answers = tf.argmax(model(images, training=False), axis=1)
        return tf.math.count_nonzero(answers == tf.cast(labels, tf.int64))

    @tf.function
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(train_replica, args=batch), axis=None)

    @tf.function
    def test_step(batch):
        return strategy.reduce("SUM", strategy.run(count_right, args=batch), axis=None)

    for epoch in range(1, EPOCHS + 1):
        losses = [float(train_step(batch)) for batch in train]
        strategy.print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}")
    right = sum(int(test_step(batch)) for batch in test)
    strategy.print(f"test accuracy: {right / len(test_y):.4f}")


if __name__ == "__main__":
    main()
