"""Changed rows are found without a list of all ids, whoever has had a row before."""

import numpy as np
import pytest
import tensorflow as tf

from strategies import DistributedEmbedding, Eviction, FeatureConfig, TableConfig
from strategies.embedding.checkpoint import snapshot
from strategies.embedding.checkpoint.row_tracker import RowTracker

NAMES, IDS = "ab", 60


class Shard:
    """Two tables whose rows share a store, and what is known of them in other ways."""

    def __init__(self, seed):
        tables = [TableConfig(name, 2, eviction=Eviction(age=8)) for name in NAMES]
        layer = DistributedEmbedding(features={each.name: FeatureConfig(each) for each in tables})
        layer.build()
        self.shards = layer.tables._shards
        (self._lookup,) = self.shards[0].lookups.values()
        self.tables = self.shards[0].tables
        self.store = self.tables["a"].store
        self._random = np.random.default_rng(seed)
        self.had_row = {name: set() for name in NAMES}

    def train(self, count):
        for _ in range(count):
            pairs = np.unique(self._random.integers(0, [2, IDS], [12, 2]), axis=0)
            keys = np.concatenate([pairs, np.ones([len(pairs), 1], np.int64)], 1)
            self._lookup(tf.constant(keys), training=True, starts_step=True)
            self._note()
            if self._random.random() < 0.5:
                self.tables[self._random.choice([*NAMES])].evict()

    def ids(self, name):
        return set(self.tables[name].all()[0].numpy().tolist())

    def _note(self):
        for name in NAMES:
            self.had_row[name] |= self.ids(name)

    def begin(self):
        """Begins to follow changes; returns the tracker and the length of the rows."""
        self.had_row = {name: self.ids(name) for name in NAMES}
        self.since = int(self.store.step.numpy())
        lengths = {name: snapshot.grow_columns(self.shards, name) for name in NAMES}
        return RowTracker(self.shards), lengths

    def changed(self, name):
        ids, rows = (array.numpy() for array in self.tables[name].all())
        last_step = self.store.metadata.last_step.gather(tf.constant(rows)).numpy()
        is_newer = last_step > self.since
        return sorted(zip(ids[is_newer].tolist(), rows[is_newer].tolist(), strict=True))


def read(shard, tracker, lengths):
    for name in NAMES:
        for chunk in snapshot.row_chunks(shard.shards, name, lengths=lengths[name]):
            shard.train(1)  # after the ids of the chunk were read, before they are noted
            tracker.note(chunk)


@pytest.mark.parametrize("seed", range(8))
def test_changes_are_those_that_a_list_of_all_ids_shows(seed):
    shard = Shard(seed)
    shard.train(12)
    tracker, lengths = shard.begin()
    shard.train(2)
    read(shard, tracker, lengths)
    shard.train(3)
    changes = tracker.take()
    assert any(len(each.removed) for name in NAMES for each in changes[name])
    for name in NAMES:
        (found,) = changes[name]
        assert found.is_complete
        pairs = zip(found.ids.tolist(), found.numbers.tolist(), strict=True)
        assert sorted(pairs) == shard.changed(name)
        assert set(found.removed.tolist()) == shard.had_row[name] - shard.ids(name)


def test_of_two_at_a_time_the_first_one_is_not_complete():
    shard = Shard(0)
    shard.train(3)
    first, lengths = shard.begin()
    second, _ = shard.begin()
    for tracker in (first, second):
        read(shard, tracker, lengths)
    assert not any(each.is_complete for name in NAMES for each in first.take()[name])
    found = second.take()["a"][0]
    assert found.is_complete
    assert sorted(found.ids.tolist()) == [id_ for id_, _ in shard.changed("a")]


def test_insertions_are_only_kept_for_a_reader():
    shard = Shard(0)
    entries = shard.store.insertions._entries
    shard.train(2)
    assert int(entries.length()) == 0
    tracker, lengths = shard.begin()
    read(shard, tracker, lengths)
    assert int(entries.length()) > 0
    tracker.take()
    shard.train(2)
    assert int(entries.length()) == 0
