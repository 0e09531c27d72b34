"""Collectives, in closed form: values of every type, in and out of functions."""

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives import RowCounts
from tests.support import hosts
from tests.support.assertions import raises
from tests.support.checks import run_checks

hosts.pretend()
TYPES = (
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 "
    "float16 bfloat16 float32 float64 complex64 complex128"
).split()

workers = strategies.MultiWorkerMirroredStrategy().extended.collectives
rank, n = workers.rank, workers.size
total = n * (n + 1) // 2  # the sum of rank + 1
# A strategy's calls are not converted either, and converting these takes most of a job's time.
all_reduce, all_gather = map(
    tf.autograph.experimental.do_not_convert, (workers.all_reduce, workers.all_gather)
)


def check_they_start_once():
    assert strategies.MultiWorkerMirroredStrategy().extended.collectives is workers


def check_what_is_broadcast_keeps_its_type_and_bits():
    for dtype in TYPES:
        for shape in ([], [3], [0], [2, 0], [5, 3]):
            values = tf.cast(tf.reshape(tf.range(int(np.prod(shape))) + rank, shape), dtype)
            first = tf.cast(tf.reshape(tf.range(int(np.prod(shape))), shape), dtype)
            found = workers.broadcast(values)
            assert found.dtype == values.dtype and found.shape == values.shape
            np.testing.assert_array_equal(found.numpy(), first.numpy())
    special = tf.constant([float("nan"), float("inf"), -0.0])
    assert workers.broadcast(special).numpy().tobytes() == special.numpy().tobytes()


def check_what_is_gathered_keeps_its_type_with_rows_or_without():
    for dtype in TYPES:
        for extra in (0, 1):
            mine = tf.cast(tf.fill([rank + extra, 3], rank), dtype)
            found = all_gather(mine)
            assert found.dtype == mine.dtype
            ranks = np.repeat(np.arange(n), np.arange(n) + extra)[:, np.newaxis]
            expected = np.broadcast_to(ranks, [len(ranks), 3])
            expected = expected != 0 if dtype == "bool" else expected
            np.testing.assert_array_equal(found.numpy(), expected)
    assert all_gather(tf.zeros([rank + 1, 0])).shape == [total, 0]


def check_rows_go_to_the_worker_that_they_are_for():
    to = np.array([(rank + worker) % 3 for worker in range(n)])
    received = np.array([(worker + rank) % 3 for worker in range(n)])
    mine = np.repeat(10 * rank + np.arange(n), to)
    expected = np.repeat(10 * np.arange(n) + rank, received)

    @tf.function(reduce_retracing=True)
    def in_function(rows, counts, known=None):
        return workers.all_to_all(rows, counts, known)

    cases = [(dtype, [3], workers.all_to_all) for dtype in TYPES]
    cases += [("int8", inner, workers.all_to_all) for inner in ([], [2, 3])]
    cases += [(dtype, [3], in_function) for dtype in ("bool", "int64", "bfloat16")]
    for dtype, inner, call in cases:
        one = [1] * len(inner)
        rows, wanted = (
            tf.cast(tf.tile(tf.reshape(each, [-1, *one]), [1, *inner]), dtype)
            for each in (mine, expected)
        )
        found, counts = call(rows, tf.constant(to, tf.int32))
        assert found.dtype == rows.dtype and found.shape == wanted.shape
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
        np.testing.assert_array_equal(counts.received, received)
        if len(inner) == 1:
            # The same rows go back, and as many go there once more.
            there = tf.constant(received, tf.int32)
            back, _ = call(found, there, RowCounts(tf.constant(to, tf.int32), counts.most))
            np.testing.assert_array_equal(back.numpy(), rows.numpy())
            again, _ = call(rows, tf.constant(to, tf.int32), RowCounts(there, counts.most))
            np.testing.assert_array_equal(again.numpy(), wanted.numpy())
    for inner in (2, 0):
        nothing, _ = workers.all_to_all(tf.zeros([0, inner]), tf.zeros([n], tf.int32))
        assert nothing.shape == [0, inner]
    nothing, _ = workers.all_to_all(tf.zeros([n, 0]), tf.ones([n], tf.int32))
    assert nothing.shape == [n, 0]


def check_strings_are_refused():
    for call in (workers.all_gather, workers.broadcast):
        with raises(ValueError, "Received: string."):
            call(tf.constant(["text"]))


def check_exchanges_of_one_size_come_one_after_the_other():
    """Though nothing here waits for anything else."""

    @tf.function
    def inner(value):
        all_reduce([value * 7])
        return all_reduce([value])[0]

    @tf.function(experimental_attributes={"_noinline": True})
    def not_inlined(value):
        return all_reduce([value])[0]

    @tf.function
    def many(value, flag):
        reduced = [all_reduce([value * factor])[0] for factor in range(100)]
        one = all_reduce([value, tf.cast(value, tf.int64)])[0] if flag else -value
        looped = tf.constant(0.0)
        for step in tf.range(20):
            looped += inner(value * tf.cast(step, tf.float32))[0]
            looped += not_inlined(value)[0]
            if step % 2 == 0:
                looped += 0 * all_gather(value[:rank])[0]
        return reduced, one, looped

    value = tf.fill([4], float(rank + 1))
    for flag in (True, False, True):
        reduced, one, looped = many(value, tf.constant(flag))
        np.testing.assert_allclose([each[0] for each in reduced], total * np.arange(100))
        np.testing.assert_allclose(one, [total if flag else -rank - 1] * 4)
        np.testing.assert_allclose(looped, total * (190 + 20))


def check_the_number_of_values_need_not_be_known_when_the_function_is_made():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def of_any_length(value):
        return all_reduce([value])[0], all_gather(value)

    for length in (0, 1, 5, 1 << 16):
        summed, gathered = of_any_length(tf.ones([length]))
        np.testing.assert_array_equal(summed, [n] * length)
        assert gathered.shape == [n * length]


def check_large_sums_between_small_ones():
    """Of more bytes than a chunk of shared memory has."""

    @tf.function
    def sums(values, whole_numbers):
        small = all_reduce([values[0]])
        large = all_reduce([values, whole_numbers])
        behind = all_reduce([values[-1]])
        return [*small, *large, *all_reduce([large[0]]), *behind]

    values = np.linspace(0, 1, 700_001, dtype="float32").reshape([-1, 1])
    for step in range(1, 4):
        mine = tf.constant(values * (rank + step)), tf.fill([3, 5], rank + step)
        for found in (sums(*mine), sums.python_function(*mine)):
            added_up = total + n * (step - 1)
            np.testing.assert_allclose(found[0], 0.0)
            np.testing.assert_allclose(found[1], values * added_up, rtol=1e-6)
            assert (found[2].numpy() == added_up).all()
            np.testing.assert_allclose(found[3], values * added_up * n, rtol=1e-6)
            np.testing.assert_allclose(found[4], added_up)


def check_results_need_not_be_used_and_functions_may_have_other_nodes_elsewhere():
    @tf.function
    def step(value):
        all_reduce([value * 7])  # not used
        for _ in range(5 * rank):
            value = -tf.negative(value)
        looped = tf.constant(0.0)
        for number in tf.range(4):
            looped += all_reduce([value])[0][0]
            if number % 2 == 0:
                all_gather(value[:rank])  # not used
                looped += tf.reduce_sum(all_gather(value[:1]))
        return looped

    for _ in range(2):
        assert float(step(tf.fill([70_000], float(rank + 1)))) == (4 + 2) * total


def check_a_dataset_asks_the_others_while_the_step_before_is_still_exchanging():
    apart = workers.new_stream()
    steps = 10 + n - 1

    def has_more(number):
        return apart.all_reduce([tf.cast(number < 10 + rank, tf.int64)])[0] > 0

    dataset = tf.data.Dataset.range(20).take_while(has_more).prefetch(4)
    assert [int(number) for number in dataset] == list(range(steps))

    @tf.function
    def step(number):
        return all_reduce([number])[0]

    for number, batch in enumerate(dataset):
        assert int(step(batch)) == n * number

    @tf.function
    def epoch():
        looped = tf.constant(0, tf.int64)
        for number in dataset:
            for _ in range(3):
                looped += all_reduce([number])[0]
        return looped

    for _ in range(5):
        assert int(epoch()) == 3 * n * sum(range(steps))


if __name__ == "__main__":
    run_checks(globals(), wait=lambda: all_reduce([tf.constant(0)]))
