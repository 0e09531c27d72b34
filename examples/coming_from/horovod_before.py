"""A script of Horovod's, as it is; horovod_after.py does the same with a strategy.

    $ tf-config run --workers 2 examples/coming_from/horovod_before.py
    ...
    [worker 0] epoch 10: loss 0.11
    [worker 0] test accuracy: 0.89

It runs under tf-config unchanged, and under horovodrun; it needs Horovod. It uses Horovod's tape,
for under Keras 3 `hvd.DistributedOptimizer` with `fit` does not reduce gradients. What is marked
"Horovod" is not needed any more in horovod_after.py.
"""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()  # Horovod

gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")  # Horovod

images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16
dataset = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
dataset = dataset.shard(hvd.size(), hvd.rank())  # Horovod
dataset = dataset.shuffle(1500).batch(64 // hvd.size(), drop_remainder=True)  # Horovod

model = keras.Sequential(
    [keras.Input([64]), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(2e-3)
optimizer.build(model.trainable_variables)
weights = [variable.value for variable in model.trainable_variables]  # Horovod: plain tf.Variables


@tf.function
def step(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)  # Horovod
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return hvd.allreduce(loss)  # Horovod


hvd.broadcast_variables(weights, root_rank=0)  # Horovod
for epoch in range(1, 11):
    losses = [float(step(*batch)) for batch in dataset]
    if hvd.rank() == 0:  # Horovod
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}")

if hvd.rank() == 0:  # Horovod
    accuracy = (model.predict(images[1500:], verbose=0).argmax(axis=1) == labels[1500:]).mean()
    print(f"test accuracy: {accuracy:.3f}")
    model.save("horovod.keras")
