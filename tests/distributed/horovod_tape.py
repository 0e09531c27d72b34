"""A plain Horovod script for Keras 3: no strategy, no TF_CONFIG, as Horovod's own examples."""

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

hvd.init()
keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
model.build([None, 3])
optimizer = keras.optimizers.SGD(0.1)
values = [variable.value for variable in model.trainable_variables]
hvd.broadcast_variables(values, root_rank=0)
numbers = np.random.default_rng(hvd.rank())
before = [value.numpy() for value in values]
for _ in range(5):
    x = tf.constant(numbers.normal(size=[8, 3]), tf.float32)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean((model(x) - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
    gradients = tape.gradient(loss, values)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
flat = tf.concat([tf.reshape(value, [1, -1]) for value in values], 1)
everybody = hvd.allgather(flat).numpy()
assert len(everybody) == hvd.size() > 1
assert (everybody == everybody[0]).all()
assert any((old != new.numpy()).any() for old, new in zip(before, values, strict=True))
assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
print("passed")
