"""Reads sequences of ids of any length with a masked LSTM, on one worker or on many.

    $ tf-config run --workers 2 examples/masked_lstm.py
    [worker 0] accuracy on other visits: 1.000
    [worker 0] filled up with ten more zeros, predictions differ by 0.000000

The sequences are a shop's visits, made up here: the ids of the products that someone looked at.
A visit ends with a purchase if a telephone was looked at before a case for it; the other way round
it does not. Ids are any int64 but 0, which fills short visits up. `mask_zero=True` has the LSTM
pass over it, so a visit's prediction does not depend on what it is filled up to.
"""

import keras
import numpy as np

import strategies

LENGTH = 20
TELEPHONES, CASES, OTHERS = 10**15, -(10**15), 10**9  # a product's id is one of these + 0 to 99


def make_visits(count, seed):
    """Returns ids [count, LENGTH], filled up with 0, and whether there was a purchase [count]."""
    random = np.random.default_rng(seed)
    ids = OTHERS + random.integers(100, size=[count, LENGTH])
    lengths = random.integers(2, LENGTH + 1, size=count)
    bought = random.integers(2, size=count)
    for visit, length, purchase in zip(ids, lengths, bought, strict=True):
        visit[length:] = 0
        first, second = sorted(random.choice(length, 2, replace=False))
        telephone, case = (first, second) if purchase else (second, first)
        visit[telephone] = TELEPHONES + random.integers(100)
        visit[case] = CASES + random.integers(100)
    return ids, bought.astype("float32")


def make_model():
    ids = keras.Input([None], dtype="int64")
    x = strategies.DistributedEmbedding(16, mask_zero=True)(ids)
    x = keras.layers.LSTM(32)(x)
    return keras.Model(ids, keras.layers.Dense(1, "sigmoid")(x))


def main():
    keras.utils.set_random_seed(1)
    strategy = strategies.from_tf_config()
    ids, bought = make_visits(5000, seed=1)
    test_ids, test_bought = make_visits(1000, seed=2)

    with strategy.scope():
        model = make_model()
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    model.fit(ids, bought, batch_size=128, epochs=5)

    _, accuracy = model.evaluate(test_ids, test_bought, verbose=0)
    longer = np.pad(test_ids, [(0, 0), (0, 10)])
    difference = np.abs(model.predict(longer, verbose=0) - model.predict(test_ids, verbose=0)).max()
    strategy.print(f"accuracy on other visits: {accuracy:.3f}")
    strategy.print(f"filled up with ten more zeros, predictions differ by {difference:.6f}")


if __name__ == "__main__":
    main()
