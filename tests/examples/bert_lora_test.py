"""The texts of the BERT example; headers_test.py trains it. Both need KerasHub."""

import numpy as np
import pytest

pytestmark = pytest.mark.training
pytest.importorskip("keras_hub", reason="not installed: keras-hub")


def test_the_label_is_the_number_of_the_word_that_occurs(example):
    bert = example("bert_lora")
    ((inputs, labels),) = bert.make_texts(100, 8, seed=1).batch(100).as_numpy_iterator()
    tokens = inputs["token_ids"]
    assert tokens.shape == (100, bert.LENGTH) and tokens.max() < bert.VOCABULARY
    assert np.all(tokens[:, 0] == bert.START)
    np.testing.assert_array_equal(inputs["padding_mask"] == 0, tokens == bert.PADDING)
    words = np.stack([(tokens == word).sum(axis=1) for word in bert.WORDS], axis=1)
    np.testing.assert_array_equal(words, np.eye(8)[labels])
    ((_, parities),) = bert.make_texts(100, 2, seed=1).batch(100).as_numpy_iterator()
    np.testing.assert_array_equal(parities, labels % 2)
