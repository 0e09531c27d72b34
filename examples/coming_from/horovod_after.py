"""What horovod_before.py does, with a strategy.

    $ tf-config run --workers 2 examples/coming_from/horovod_after.py
    [worker 0] test accuracy: 0.88

Ranks, the broadcast, the shards of the dataset and the loop are gone, and it does not need Horovod.
64 is now the batch size of all workers together, as it is on one worker. The accuracy need not be
the same to the last digit: examples come in another order.
"""

import keras
from sklearn.datasets import load_digits

import strategies

strategy = strategies.from_tf_config()

images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16

with strategy.scope():
    model = keras.Sequential(
        [keras.Input([64]), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
model.fit(images[:1500], labels[:1500], batch_size=64, epochs=10)

_, accuracy = model.evaluate(images[1500:], labels[1500:], verbose=0)
strategy.print(f"test accuracy: {accuracy:.3f}")
with strategies.writing("after.keras", strategy) as path:
    model.save(path)
