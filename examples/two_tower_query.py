"""Asks the SavedModel of two_tower.py for movies, by plain TensorFlow.

    $ python examples/two_tower.py --export served
    $ python examples/two_tower_query.py served 1 2
    user 1: 81 181 221 301 41 321 201 101 261 381
    user 2: 362 2 342 242 82 22 122 322 262 62

Neither keras-strategies nor Keras is needed here, and two_tower.py may have run on any number of
workers. The model returns the best of all movies; which
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
    print(f"user {user}:", *movies)
