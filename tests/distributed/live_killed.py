"""A training that exports deltas, and a follower that writes what it serves, until they are killed.

live_killed.py train DIRECTORY    exports deltas of random rows; `expected` has the model's outputs
live_killed.py follow DIRECTORY   applies them one by one, and writes the SavedModel after each

They print "begun" and their process id when they are at it, and go on where those before them were
killed.
"""

import itertools
import os
import shutil
import sys
from pathlib import Path

import keras
import numpy as np

import strategies
from strategies.follow import Follower
from strategies.live import delta_folder

what, directory = sys.argv[1], Path(sys.argv[2])
served, deltas, expected = (directory / name for name in ("served", "deltas", "expected"))
IDS = np.arange(300).reshape([100, 3])


def train():
    random = np.random.default_rng(os.getpid())
    layer = strategies.DistributedEmbedding(
        4, name="table", combiner="sum", eviction=strategies.Eviction(age=3)
    )
    inputs = keras.Input([3], dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(2, name="dense")(layer(inputs)))
    model.compile(keras.optimizers.Adagrad(0.5), "mse")
    if delta_folder.newest(deltas) is None:
        strategies.export(model, served)
    expected.mkdir(exist_ok=True)
    for turn in itertools.count():
        ids = random.integers(0, 300, [20, 3])
        model.train_on_batch(ids, random.normal(size=[20, 2]))
        layer.evict()
        newest = delta_folder.newest(deltas)
        number = 1 if newest is None else newest.number + 1
        new = expected / ".new.npy"
        np.save(new, model.predict(IDS, batch_size=100, verbose=0))
        new.rename(expected / f"{number}.npy")
        if turn == 1:
            print(f"begun {os.getpid()}", flush=True)
        strategies.export_delta(model, deltas)


def follow():
    versions, arrived = directory / "versions", directory / "arrived"
    versions.mkdir(exist_ok=True)
    arrived.mkdir(exist_ok=True)
    written = [int(path.name) for path in versions.iterdir() if path.name.isdigit()]
    follower = Follower(versions / str(max(written)) if written else served, arrived)
    has_begun = False
    for number, folder in delta_folder.folders(deltas):
        if not (arrived / folder.name).exists():
            copy = arrived / f".{folder.name}"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            copy.rename(arrived / folder.name)
        if number > follower.number:
            assert follower.update()[-1] == number
            if not has_begun:
                print(f"begun {os.getpid()}", flush=True)
            has_begun = True
            follower.save(versions)
    print("done", flush=True)


if __name__ == "__main__":
    {"train": train, "follow": follow}[what]()
