"""What ddp_before.py does, with a strategy.

    $ tf-config run --workers 2 examples/coming_from/ddp_after.py
    [worker 0] test accuracy: 0.892

The process group, ranks, devices, the sampler and the loop are gone. 64 is the batch size of all
workers together, where DDP has 32 for each process. With GPUs, `--gpus-per-worker 1` gives each
worker its own. Where torchrun starts the job already, keep it:
`torchrun --nproc-per-node 2 --no-python tf-config exec -- examples/coming_from/ddp_after.py`.
"""

import keras
from sklearn.datasets import load_digits

import strategies

EPOCHS, BATCH_SIZE = 10, 64  # of all workers together

keras.utils.set_random_seed(0)
strategy = strategies.MultiWorkerMirroredStrategy()

images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16

with strategy.scope():
    model = keras.Sequential(
        [keras.Input([64]), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
model.fit(images[:1500], labels[:1500], batch_size=BATCH_SIZE, epochs=EPOCHS, verbose=0)

_, accuracy = model.evaluate(images[1500:], labels[1500:], verbose=0)
strategy.print(f"test accuracy: {accuracy:.3f}")
with strategies.writing("after.weights.h5", strategy) as path:
    model.save_weights(path)
