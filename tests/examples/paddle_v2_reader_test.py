"""The reader of the example for users of PaddlePaddle v2, in closed form."""

import pytest

pytestmark = pytest.mark.training


def test_a_reader_yields_successive_words_of_each_line(example):
    model = example("coming_from/paddle_v2_reader")
    lines = ["a b a c a b".split(), "too short".split(), "b b b b b".split()]
    words = {"a": 1, "b": 2}
    reader = model.ngrams(lines, words)
    expected = [[1, 2, 1, 0, 1], [2, 1, 0, 1, 2], [2, 2, 2, 2, 2]]
    assert list(reader()) == expected
    assert list(reader()) == expected, "a reader can be read again"


def test_the_most_frequent_words_have_numbers(example, monkeypatch):
    model = example("coming_from/paddle_v2_reader")
    monkeypatch.setattr(model, "WORDS", 3)
    assert model.build_dict(["a b b".split(), "c b a".split()]) == {"b": 1, "a": 2}
