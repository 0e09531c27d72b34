"""Asks the SavedModel of two_tower.py for movies, by plain TensorFlow.

    $ python examples/two_tower.py --export served
    $ python examples/two_tower_query.py served 1 2
    user 1: 1 21 41 61 81 101 121 141 161 181 201 221 241 261 281 301 321 341 361 381
    user 2: 2 22 42 62 82 102 122 142 162 182 202 222 242 262 282 302 322 342 362 382

Neither keras-strategies nor Keras is needed here, and two_tower.py may have run on any number of
workers. The model returns the best of all movies, here those that the synthetic users like; which
ones a user has rated already is known to who asks.
"""

import argparse

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("model", help="directory of a SavedModel")
parser.add_argument("users", help="user ids", nargs="+", type=int)
flags = parser.parse_args()

model = tf.saved_model.load(flags.model)
best = model.serve(tf.constant(flags.users, tf.int64)[:, tf.newaxis])
for user, movies in zip(flags.users, best.numpy(), strict=True):
    print(f"user {user}:", *sorted(movies))
