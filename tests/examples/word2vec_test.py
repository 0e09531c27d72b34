"""Word vectors: what the model is shown, in closed form, and what it learns."""

import re

import numpy as np
import pytest

pytestmark = pytest.mark.training


@pytest.fixture
def skip_gram(example):
    return example("word2vec")


def test_the_vocabulary_is_in_the_order_of_frequency(skip_gram):
    words, counts = skip_gram.vocabulary("a b b c c c d d d d".split(), least=2)
    assert words == ["d", "c", "b"]
    assert counts.tolist() == [4, 3, 2]


def test_frequent_words_are_thinned_out(skip_gram):
    """Of a word with the share f of the text, sqrt(0.001 / f) stays."""
    counts = np.array([900_000, 99_000, 1_000])
    ids = np.repeat(np.arange(3), counts)
    left = np.bincount(skip_gram.subsampled(ids, counts, np.random.default_rng(0)))
    expected = counts * np.minimum(1, np.sqrt(1e-3 / (counts / counts.sum())))
    assert np.all(abs(left - expected) <= 5 * np.sqrt(expected))
    assert left[2] == 1000, "a rare word stays"


def test_pairs_are_within_the_window_and_nearer_ones_more_often(skip_gram):
    """A neighbour at distance d of window w comes with the probability (w - d + 1) / w."""
    count, window = 30_000, 3
    found = skip_gram.pairs(np.arange(count), window, np.random.default_rng(0))
    distances = found[:, 1] - found[:, 0]
    assert set(distances) == {-3, -2, -1, 1, 2, 3}
    for distance in range(1, window + 1):
        share = (window - distance + 1) / window
        for side in (-distance, distance):
            number = np.sum(distances == side)
            deviation = np.sqrt(count * share * (1 - share))
            assert abs(number - (count - distance) * share) <= 5 * deviation


def test_negatives_follow_the_counts_to_three_quarters(skip_gram):
    counts = np.array([1000, 100, 10, 1])
    pairs = np.tile([[2, 3]], [20_000, 1])
    negatives = []
    for (word, candidates), labels in skip_gram.dataset(pairs, counts):
        assert np.all(word == 2) and np.all(candidates[:, 0] == 3)
        assert word.shape[1:] == [1] and candidates.shape == labels.shape
        assert np.all(labels == [[1, 0, 0, 0, 0, 0]])
        negatives.append(candidates[:, 1:].numpy().ravel())
    negatives = np.concatenate(negatives)
    share = counts**0.75 / np.sum(counts**0.75)
    found = np.bincount(negatives, minlength=4) / len(negatives)
    assert np.all(abs(found - share) < 5 * np.sqrt(share / len(negatives)))


def test_the_nearest_have_the_largest_cosine(skip_gram):
    vectors = np.array([[1, 0], [5, 5], [0, 1], [10, 1], [-1, 0], [0, 0]], float)
    assert skip_gram.nearest(vectors, 0, count=3) == [3, 1, 2]


@pytest.mark.slow
def test_two_workers_learn_what_one_does(run):
    """Each takes half of the rows of each batch; the loss is the same, and so are the words."""
    small = ["--epochs=2", "--least=20", "--words=integer,class"]
    alone = run("word2vec", *small)
    both = run("word2vec", *small, under=("--workers", "2"))
    first, last = losses(alone)
    assert last < first - 0.02
    assert last < 0.44  # 0.45 is that of the share of positives, 1 in 6
    np.testing.assert_allclose(losses(both), [first, last], atol=2e-4)
    assert near(both) == near(alone)
    assert len(near(alone)) == 2


def losses(output):
    found = re.search(r"loss: ([\d.]+) in the first epoch, ([\d.]+) in the last", output)
    return [float(loss) for loss in found.groups()]


def near(output):
    return re.findall(r"near \w+: .*", output)


def test_a_word_that_is_not_learned_is_named(run):
    output = run("word2vec", "--words=class,qwertz", fails=True)
    assert "Received: ['qwertz']" in output
