"""Times of steps: no row is taken for an older one than it is, and few times are kept."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.embedding.shard.step_times import StepTimes

SECONDS = 16


def recorded(times, second, step):
    times.record(tf.constant(int(second * 10**6), tf.int64), tf.constant(step, tf.int64))


def last_expired(times, second):
    return int(times.last_expired(tf.constant(int(second * 10**6), tf.int64)))


def test_a_step_expires_late_by_a_part_of_the_time_and_never_early():
    times = StepTimes(SECONDS)
    began = np.cumsum(np.random.default_rng(0).exponential(0.25, 160))
    for step, second in enumerate(began):
        recorded(times, second, step)
        assert len(times.pairs()) <= 2 * 64 + 3
        expired = last_expired(times, second)
        late, early = (
            int((began <= second - age).sum()) - 1 for age in (SECONDS * (1 + 1 / 64), SECONDS)
        )
        assert late <= expired <= early
    assert late > 50


def test_a_pause_makes_no_step_young_that_was_over_before():
    times = StepTimes(SECONDS)
    for step, second in enumerate([0, 0.1, 0.2, 100]):
        recorded(times, second, step)
    assert last_expired(times, 100) == 2
    assert last_expired(times, 115.9) == 2 and last_expired(times, 116) == 3


def test_a_clock_that_is_set_back_makes_no_step_old():
    times = StepTimes(SECONDS)
    for step, second in enumerate([1000, 1010, 5, 6]):
        recorded(times, second, step)
    assert last_expired(times, 20.9) == -1
    assert last_expired(times, 22) == 3


@pytest.mark.parametrize("seconds", [1e-3, 10**9])
def test_any_number_of_seconds(seconds):
    times = StepTimes(seconds)
    for step in range(3):
        recorded(times, 2 * step * seconds, step)
    assert last_expired(times, 4 * seconds) == 1
    times.clear()
    assert last_expired(times, 4 * seconds) == -1
