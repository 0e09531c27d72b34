"""Keys of the next batches, of which the rows are exchanged ahead."""

import numpy as np
import pytest

from strategies.embedding.lookup.batch_keys import BatchKeys


def keys(ids):
    return [np.array([[0, each, 1] for each in ids], np.int64).reshape([-1, 3])]


def submit(batches, *each, ends=True):
    """Submits the batches of an iteration."""
    iteration = batches.begin()
    for number, ids in enumerate(each):
        following = each[number + 1] if number + 1 < len(each) else None
        if following is None and not ends:
            return
        batches.submit(
            (iteration, number), keys(ids), None if following is None else keys(following)
        )


def taken(batches, ids):
    """Returns whether the rows of a batch are there, and the ids of the batch after it."""
    is_there, following = batches.take(keys(ids))
    return is_there, None if following is None else following[0][:, 1].tolist()


def test_the_rows_of_a_batch_are_there_if_the_step_before_has_exchanged_them():
    batches = BatchKeys(1)
    submit(batches, [1], [2, 3], [4])
    assert taken(batches, [1]) == (False, [2, 3])
    assert taken(batches, [2, 3]) == (True, [4])
    assert taken(batches, [4]) == (True, None)


def test_the_first_batch_of_an_iteration_has_no_rows_yet():
    batches = BatchKeys(1)
    submit(batches, [1], [1], [1], ends=False)
    assert taken(batches, [1]) == (False, [1])
    submit(batches, [5], [1])
    assert taken(batches, [5]) == (False, [1])
    assert taken(batches, [1]) == (True, None)


def test_batches_that_no_step_used_are_forgotten():
    batches = BatchKeys(1)
    submit(batches, [1], [2], [3])
    assert taken(batches, [2]) == (False, [3])
    with pytest.raises(ValueError, match="with other ids than those of the next batches"):
        taken(batches, [1])


def test_no_rows_are_there_after_rows_were_replaced():
    batches = BatchKeys(1)
    submit(batches, [1], [2], [3])
    taken(batches, [1])
    batches.clear()
    assert taken(batches, [2]) == (False, [3])
    assert taken(batches, [3]) == (True, None)


def test_batches_without_ids_are_told_apart_by_their_order():
    batches = BatchKeys(1)
    submit(batches, [], [], [4])
    assert taken(batches, []) == (False, [])
    assert taken(batches, []) == (True, [4])
    assert taken(batches, [4]) == (True, None)
