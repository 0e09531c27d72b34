"""Recommends movies with a two-tower model, on one worker or on many.

    $ tf-config run --workers 2 examples/two_tower.py --export served
    [worker 0] recall@10 of 500 users: 0.918
    [worker 0] recall@10 of recommending the most popular movies: 0.022
    $ python examples/two_tower_query.py served 1 2
    user 1: 1 21 41 61 81 101 121 141 161 181 201 221 241 261 281 301 321 341 361 381
    user 2: 2 22 42 62 82 102 122 142 162 182 202 222 242 262 282 302 322 342 362 382

One tower makes a vector of a user's id, the other one of a movie's id. They learn to tell a movie
that the user liked from movies drawn at random by the dot product of the vectors. The last movie
that each user liked is held out: recall@10 is how often it is among the ten best of the movies
that the user has not rated otherwise.

`--ratings` takes MovieLens's ratings.csv, or ratings.dat of its older versions. Without it the
ratings are synthetic, in the format of ratings.csv: user u likes the movies m with
m % 20 == u % 20, and gives other movies few stars.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import strategies

WIDTH, NEGATIVES, K, SERVED = 16, 20, 10, 20
LIKED = 4  # stars or more
TESTED = 2000  # users at most


def synthetic(users=500, movies=400, genres=20):
    """Yields the lines of a ratings.csv."""
    random = np.random.default_rng(1)
    yield "userId,movieId,rating,timestamp"
    for user in range(1, users + 1):
        genre = np.arange(user % genres, movies, genres)
        for movie in {*random.choice(genre, 10, replace=False), *random.integers(0, movies, 10)}:
            stars = random.choice([4, 4.5, 5] if movie in genre else [1, 2, 3])
            yield f"{user},{movie},{stars},{random.integers(1_000_000_000)}"


def read(lines):
    """Returns an array of ratings, the oldest first: user, movie, stars, seconds."""
    rows = (line.replace("::", ",") for line in lines if not line.startswith("userId"))
    ratings = np.loadtxt(rows, delimiter=",", usecols=range(4), ndmin=2)
    return ratings[np.argsort(ratings[:, 3], kind="stable")]


def split(ratings):
    """Returns the (user, movie) pairs to train on, and those to test on: one of each user."""
    liked = ratings[ratings[:, 2] >= LIKED, :2].astype("int64")
    _, from_end = np.unique(liked[::-1, 0], return_index=True)
    last = len(liked) - 1 - from_end
    if len(last) == len(liked):
        raise ValueError(f"nobody who gave two movies {LIKED} stars.")
    return np.delete(liked, last, axis=0), liked[last]


def make_dataset(pairs, movies):
    """Returns batches of ((user, [liked movie, random movies...]), 0): the first is the answer."""

    def with_negatives(batch):
        drawn = tf.random.uniform([len(batch), NEGATIVES], 0, len(movies), tf.int32)
        candidates = tf.concat([batch[:, 1:], tf.gather(movies, drawn)], axis=1)
        return (batch[:, :1], candidates), tf.zeros(len(batch))

    dataset = tf.data.Dataset.from_tensor_slices(pairs).shuffle(len(pairs))
    return dataset.batch(256).map(with_negatives)


def make_tower():
    # Ids are any int64: no vocabulary, no size. Each worker has a part of the rows.
    ids = keras.Input([None], dtype="int64")
    rows = strategies.DistributedEmbedding(WIDTH)(ids)
    return keras.Model(ids, keras.layers.Dense(WIDTH)(rows))


def recall(scores, tested, movies, ratings):
    """Returns recall@K of scores [users, movies]."""
    user_of = {user: row for row, user in enumerate(tested[:, 0])}
    wanted = scores[np.arange(len(tested)), np.searchsorted(movies, tested[:, 1])]
    scores = scores.copy()
    for user, movie in ratings[np.isin(ratings[:, 0], tested[:, 0]), :2]:
        scores[user_of[user], np.searchsorted(movies, movie)] = -np.inf
    return np.mean(np.sum(scores > wanted[:, np.newaxis], axis=1) < K)


class BestMovies(keras.layers.Layer):
    """Returns the ids [users, SERVED] of the movies that fit users best, by [users, 1, WIDTH]."""

    def __init__(self, movies, vectors):
        super().__init__()
        self.movies, self.vectors = tf.constant(movies), tf.constant(vectors)

    def call(self, users):
        scores = tf.matmul(users[:, 0], self.vectors, transpose_b=True)
        return tf.gather(self.movies, tf.math.top_k(scores, min(SERVED, len(self.movies))).indices)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ratings", help="MovieLens's ratings.csv or ratings.dat")
    parser.add_argument("--export", help="directory for a SavedModel")
    flags = parser.parse_args()
    try:
        given = flags.ratings
        ratings = read(Path(given).read_text().splitlines() if given else synthetic())
        trained, tested = split(ratings)
    except (OSError, ValueError) as error:
        parser.error(f"--ratings must be a file of MovieLens's ratings. Received: {error}")
    movies = np.unique(ratings[:, 1]).astype("int64")
    tested = tested[:TESTED]

    keras.utils.set_random_seed(1)
    strategy = strategies.from_tf_config()

    with strategy.scope():
        user, candidates = (keras.Input([n], dtype="int64") for n in (1, 1 + NEGATIVES))
        users, films = make_tower(), make_tower()
        scores = keras.layers.Dot(axes=2)([users(user), films(candidates)])
        model = keras.Model([user, candidates], keras.layers.Flatten()(scores))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(make_dataset(trained, movies), epochs=10, shuffle=False)

    vectors = films.predict(movies[:, np.newaxis], verbose=0)[:, 0]
    scores = users.predict(tested[:, :1], verbose=0)[:, 0] @ vectors.T
    likes = np.bincount(np.searchsorted(movies, trained[:, 1]), minlength=len(movies))
    popular = np.broadcast_to(likes.astype("float32"), scores.shape)
    found, baseline = (recall(each, tested, movies, ratings) for each in (scores, popular))
    strategy.print(f"recall@{K} of {len(tested)} users: {found:.3f}")
    strategy.print(f"recall@{K} of recommending the most popular movies: {baseline:.3f}")
    if flags.export:
        with strategy.scope():
            served = keras.Model(user, BestMovies(movies, vectors)(users(user)))
        with strategies.writing(flags.export, strategy) as path:
            served.export(path, verbose=False)


if __name__ == "__main__":
    main()
