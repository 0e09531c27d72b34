"""Tables that stay within their limit: who is evicted, when, and what becomes of rows in use."""

import importlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies import Admission, DistributedEmbedding, Eviction, TableConfig
from strategies.collectives import LocalCollectives
from strategies.embedding.shard.step_times import StepTimes
from tests.support.check_jobs import checks_of
from tests.support.embeddings import embedding_of
from tests.support.worker_threads import on_workers

pytestmark = pytest.mark.training

ROOM = 192
STEPS = 480


def layer_of(collectives, *arguments, **options):
    layer = DistributedEmbedding(*arguments, name="table", **options)
    layer._collectives = collectives
    layer.build()
    return layer


def alone(*arguments, **options):
    return layer_of(LocalCollectives(), *arguments, **options)


def step(layer, optimizer, ids):
    """One step in which each occurrence of an id adds 1 to the gradient of its row."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.convert_to_tensor(ids, tf.int64), training=True))
    gradients = tape.gradient(loss, layer.trainable_variables)
    optimizer.apply(gradients, layer.trainable_variables)


def rows_of(layer):
    """Returns the first column of the rows by id."""
    ids, rows = layer.rows()
    return dict(zip(ids.tolist(), rows[:, 0].tolist(), strict=True))


def drifting_stream(steps, size):
    """Returns the ids of each step: some of them often, and always other ones."""
    ranks = np.random.default_rng(0).zipf(1.3, [steps, size]) % (10 * ROOM)
    return (ranks + size // 2 * np.arange(steps)[:, np.newaxis]) % (10 * ROOM)


def simulated(stream, policy, batch):
    """Returns the ids that a table has in the end, and how many of a step's ids had a row."""
    last, often, hits = {}, {}, 0
    for number, ids in enumerate(stream):
        unique, counts = np.unique(ids, return_counts=True)
        new = [one for one in unique.tolist() if one not in last]
        hits += len(unique) - len(new)
        lacking = len(last) + len(new) - ROOM
        if lacking > 0:
            order = (last, often) if policy == "lru" else (often, last)
            others = set(last) - set(unique.tolist())
            ranked = sorted(others, key=lambda one: (order[0][one], order[1][one], one))
            for one in ranked[: max(lacking, batch)]:
                del last[one], often[one]
        for one, count in zip(unique.tolist(), counts.tolist(), strict=True):
            last[one], often[one] = number, often.get(one, 0) + count
    return sorted(last), hits


@pytest.mark.in_turn
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_stream_of_ten_times_as_many_ids_stays_within_the_limit(policy):
    rule = None if policy == "lru" else Eviction(policy=policy)
    layer = alone(2, ROOM, overflow="evict", eviction=rule, embeddings_initializer="normal")
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    optimizer.build(layer.trainable_variables)
    run = tf.function(
        lambda ids: step(layer, optimizer, ids), input_signature=[tf.TensorSpec([4], tf.int64)]
    )
    stream, empty = drifting_stream(STEPS, 4), layer.snapshot_rows()
    sizes, results, new = [], [], []
    for is_resumed in (False, True):
        layer.restore_rows(empty)
        for number, ids in enumerate(stream):
            if is_resumed and number == STEPS // 2:
                layer.restore_rows(layer.snapshot_rows())
            run(tf.constant(ids))
            sizes.append(int(layer._require_tables().table(None).map.size()))
        results.append(layer.snapshot_rows())
        new.append(layer.statistics()["table"]["new"])
    assert max(sizes) == ROOM
    np.testing.assert_equal(results[1], results[0])  # to the bit
    assert new[1] == 2 * new[0]
    unique = sum(len(np.unique(ids)) for ids in stream)
    ids, hits = simulated(stream, policy, batch=ROOM // 64)
    assert results[0]["0/ids"].tolist() == ids and unique - new[0] == hits
    _, hits_of_exact = simulated(stream, policy, batch=1)
    assert 0 < abs(hits - hits_of_exact) / unique < 0.02
    counted = layer.statistics()["table"]
    assert counted["evicted"] == counted["new"] - 2 * len(ids)
    assert "table: at most 192 rows; a full shard evicts its least" in layer.plan()


def test_a_row_that_comes_back_is_new_and_so_are_its_slot_variables():
    layer = alone(2, 2, overflow="evict", embeddings_initializer="ones")
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
    for ids in ([1, 2], [2, 1], [3]):  # of two that are worth the same, the smaller id goes
        step(layer, optimizer, ids)
    assert rows_of(layer) == {2: -1.5, 3: 0.0}
    step(layer, optimizer, [1])
    assert rows_of(layer) == {1: 0.0, 3: 0.0}
    step(layer, optimizer, [1])
    assert rows_of(layer) == {1: -1.5, 3: 0.0}
    assert layer(np.array([2])).numpy().tolist() == [[1.0, 1.0]]


def test_rows_that_a_step_uses_stay_and_a_step_with_too_many_changes_none():
    layer = alone(1, 4, overflow="evict", embeddings_initializer="zeros")
    optimizer = keras.optimizers.SGD(1.0)
    step(layer, optimizer, [1, 2, 3, 4])

    def twice(first, second):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(np.array(first), training=True))
            loss += tf.reduce_sum(layer(np.array(second), training=True))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply(gradients, layer.trainable_variables)

    twice([1, 5], [2, 6])  # 2 goes, and comes back; then 1, which is in use, would be the first
    assert rows_of(layer) == {1: -2.0, 2: -1.0, 5: -1.0, 6: -1.0}
    message = "than there is room for.*Received:.*1.*ids without room.*or use smaller batches"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        twice([1, 7], [8, 9, 2])
    assert sorted(rows_of(layer)) == [1, 5, 6, 7], "the first lookup had its room, the second none"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        step(layer, optimizer, [10, 11, 12, 13, 1])
    assert sorted(rows_of(layer)) == [1, 5, 6, 7]
    step(layer, optimizer, [10, 11, 12, 1])
    assert rows_of(layer) == {1: -3.0, 10: -1.0, 11: -1.0, 12: -1.0}


def test_a_gradient_is_of_the_row_that_was_looked_up_whoever_has_its_place():
    layer = alone(1, 1, overflow="evict", embeddings_initializer="zeros")
    optimizer = keras.optimizers.SGD(1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1]), training=True))
    step(layer, optimizer, [2])
    gradients = tape.gradient(loss, layer.trainable_variables)
    optimizer.apply(gradients, layer.trainable_variables)
    assert rows_of(layer) == {2: -1.0}


@pytest.mark.parametrize("rule", [{"policy": "lru"}, {"count": 2, "every": 1}])
def test_a_row_whose_gradient_is_about_to_be_applied_stays(rule):
    options = {"overflow": "evict"} if "policy" in rule else {}
    layer = alone(1, 2, eviction=Eviction(**rule), embeddings_initializer="zeros", **options)
    optimizer = keras.optimizers.SGD(1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1]), training=True))
    gradients = tape.gradient(loss, layer.trainable_variables)
    for other in (5, 2):  # each by itself is a step
        layer(np.array([other]), training=True)
    optimizer.apply(gradients, layer.trainable_variables)
    assert rows_of(layer) == {1: -1.0, 2: 0.0}


def test_an_evicted_id_is_admitted_like_one_that_never_came():
    layer = alone(1, 2, overflow="evict", admission=Admission(2), embeddings_initializer="zeros")
    optimizer = keras.optimizers.SGD(1.0)
    for ids, expected in (
        ([1, 1, 2, 2], {1: -2.0, 2: -2.0}),
        ([3], {1: -2.0, 2: -2.0}),
        ([3, 2], {2: -3.0, 3: -1.0}),
        ([1, 2], {2: -4.0, 3: -1.0}),
        ([1, 2], {1: -1.0, 2: -5.0}),
    ):
        step(layer, optimizer, ids)
        assert rows_of(layer) == expected


def test_rows_are_evicted_every_few_steps_as_if_by_hand():
    by_itself, by_hand = (
        alone(1, eviction=rule, embeddings_initializer="normal")
        for rule in (Eviction(age=4, count=2, every=3), Eviction(age=4, count=2))
    )
    optimizers = [keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.1)]
    evicted = 0
    for number, ids in enumerate(np.random.default_rng(0).integers(0, 9, [11, 4])):
        if number and number % 3 == 0:
            evicted += by_hand.evict()["table"]
        for layer, optimizer in zip((by_itself, by_hand), optimizers, strict=True):
            step(layer, optimizer, ids)
        np.testing.assert_equal(by_itself.rows(), by_hand.rows())
    packed = [layer.snapshot_rows() for layer in (by_itself, by_hand)]
    np.testing.assert_equal(packed[0], packed[1])
    assert by_itself.statistics()["table"]["evicted"] == evicted > 0
    assert "every 3 steps, evicts rows used fewer than 2 times or not for 4" in by_itself.plan()


@pytest.fixture
def clock(monkeypatch):
    """Lets a test set the seconds on the clock, by the name of the thread."""
    seconds = {}

    def now():
        name = threading.current_thread().name
        return tf.constant(seconds[name if name in seconds else ""] * 10**6, tf.int64)

    monkeypatch.setattr(StepTimes, "now", staticmethod(now))
    return seconds


def test_rows_are_evicted_by_the_clock_also_after_a_restart(clock, tmp_path):
    rule = {"eviction": Eviction(seconds=100, every=1), "embeddings_initializer": "zeros"}
    layer, optimizer = alone(1, **rule), keras.optimizers.SGD(1.0)

    def at(second, ids, expected):
        clock[""] = second
        step(layer, optimizer, ids)
        assert sorted(rows_of(layer)) == expected

    at(1000, [1, 2], [1, 2])
    at(1001, [3], [1, 2, 3])
    at(1050, [2], [1, 2, 3])
    at(1099, [4], [1, 2, 3, 4])
    at(1100, [4], [2, 3, 4])
    at(1140, [4], [2, 4])
    at(1149, [4], [2, 4])
    layer.save_rows(str(tmp_path / "rows"))
    packed = layer.snapshot_rows()
    clock[""] = 1230
    restored = [alone(1, **rule) for _ in range(3)]
    restored[0].load_rows(str(tmp_path / "rows"))
    restored[1].restore_rows(packed)
    restored[2].restore_rows({key: packed[key] for key in packed if key != "0/step_times"})
    # A file without times says nothing about when its rows were used: they are as if used now.
    for again, gone, left in zip(restored, (1, 1, 0), ([4], [4], [2, 4]), strict=True):
        assert again.evict() == {"table": gone}
        assert sorted(rows_of(again)) == left
    clock[""] = 1229  # set back
    assert restored[2].evict() == {"table": 0}
    clock[""] = 1330
    assert restored[2].evict() == {"table": 2}


def test_the_first_workers_clock_decides(clock):
    def worker(collectives):
        name = threading.current_thread().name
        speed = 1 + 9 * collectives.rank
        rule = Eviction(seconds=100, every=2)
        layer, optimizer = layer_of(collectives, 1, eviction=rule), keras.optimizers.SGD(1.0)
        left = []
        for second, ids in ((0, range(20)), (10, range(15)), (20, range(10)), (111, range(5))):
            clock[name] = second * speed
            step(layer, optimizer, ids)
            left.append(layer.statistics()["table"]["rows"])
        clock[name] = 115 * speed
        left.append(layer.evict()["table"])
        return left, layer.snapshot_rows()["0/step_times"].tolist()

    first, second = on_workers(2, worker)
    assert first == second
    # Rows are evicted before the third step, when none is that old; and at 115 those that were
    # last used at 10.
    assert first[0] == [20, 20, 20, 20, 10]


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("workers", [2, 3])
def test_each_worker_has_its_part_of_the_limit(workers, tmp_path):
    stream, rule = drifting_stream(20, 32), {"overflow": "evict", "embeddings_initializer": "ones"}
    directory = str(tmp_path)

    def train(collectives):
        layer, optimizer = layer_of(collectives, 1, 60, **rule), keras.optimizers.SGD(0.1)
        sizes = []
        for number, ids in enumerate(stream):
            step(layer, optimizer, ids[collectives.rank :: collectives.size])
            if number % 5 == 4:
                sizes.append(layer.statistics()["table"]["rows"])
            if number in (14, 19):
                layer.save_rows(directory, delta=number > 14)
        return sizes, layer.snapshot_rows()

    def go_on(collectives):
        layer, optimizer = layer_of(collectives, 1, 60, **rule), keras.optimizers.SGD(0.1)
        layer.load_rows(directory)
        packed = layer.snapshot_rows()
        for ids in stream[:5]:
            step(layer, optimizer, ids[collectives.rank :: collectives.size])
        return packed, layer.statistics()["table"]["rows"]

    def in_order(arrays):
        order = np.argsort(arrays["0/ids"])
        return {key: arrays[f"0/{key}"][order] for key in ("ids", "rows", "times", "touches")}

    sizes, saved = on_workers(workers, train)[0]
    assert max(sizes) == sizes[-1] == 60
    for other in (1, 4):
        packed, rows = on_workers(other, go_on)[0]
        np.testing.assert_equal(in_order(packed), in_order(saved))
        assert rows == 60

    def too_many(collectives):
        layer = layer_of(collectives, 1, 60, **rule)
        messages = []
        for wrong in (
            lambda: layer_of(collectives, 1, 59, **rule).load_rows(directory),
            lambda: step(layer, keras.optimizers.SGD(0.1), range(70)),
        ):
            try:
                wrong()
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                messages.append(str(error))
        return messages

    for full, step_of_all in on_workers(workers, too_many):
        assert "Received: rows of 60 ids for input_dim=59. Raise input_dim" in full
        assert "ids without room" in step_of_all


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Eviction(every=3), "every requires an age, .* Received: every=3 without them"),
        (lambda: Eviction(policy="lru", every=3), "Received: every=3 without them"),
        (lambda: Eviction(age=3, every=0), "every must be an integer >= 1. Received: 0"),
        (lambda: Eviction(seconds=0), "seconds must be a finite number >= 0.001. Received: 0"),
        (lambda: Eviction(policy="fifo"), "policy must be one of 'lru', 'lfu'. Received: 'fifo'"),
        (lambda: TableConfig("t", 2, overflow="evict"), "overflow='evict' without input_dim"),
        (
            lambda: TableConfig("t", 2, 9, eviction=Eviction(policy="lfu")),
            "requires overflow='evict', .* Received: policy='lfu' with overflow='error'",
        ),
        (
            lambda: TableConfig("t", 2, 9, overflow="evict", placement="replicated"),
            "Received: placement='replicated' with overflow='evict'",
        ),
    ],
)
def test_what_says_nothing_about_rows_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_table_that_evicts_is_no_matrix():
    layer = alone(2, 9, overflow="evict")
    with pytest.raises(ValueError, match="Received: a read of .*, which evicts rows when it is"):
        tf.convert_to_tensor(layer.embeddings)


@pytest.mark.slow
@pytest.mark.parametrize("api", ["keras", "tf_keras"])
def test_in_fit_two_replicas_use_all_rows_of_a_step_and_evict_between_steps(api):
    """Each batch has as many ids as there is room for, half of them on each replica."""
    module = importlib.import_module(api)
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layers = [
            embedding_of(api)(1, combiner="sum", embeddings_initializer="zeros", **options)
            for options in (
                {"input_dim": 8, "overflow": "evict"},
                {"eviction": Eviction(age=1, every=1)},
            )
        ]
        ids = module.Input([1], dtype="int64")
        model = module.Model(ids, module.layers.Add()([layer(ids) for layer in layers]))
        model.compile(module.optimizers.SGD(8.0), lambda y, rows: rows)
    data = np.arange(80, dtype=np.int64)[:, np.newaxis]
    model.fit(data, np.ones([80, 1]), batch_size=8, shuffle=False, verbose=0, epochs=2)
    for layer, rest in zip(layers, (8, 16), strict=True):
        # Each row was trained once: of the mean of 8, by a rate of 8.
        found, rows = layer.rows()
        assert found.tolist() == list(range(80 - rest, 80))
        counted = next(iter(layer.statistics().values()))
        assert (counted["new"], counted["evicted"]) == (160, 160 - rest)
    np.testing.assert_allclose(layers[0].rows()[1], -1.0, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "workers", "ps", "replicas"),
    [
        ("sync", 2, 0, 2),
        ("sync", 2, 2, 1),
        ("async", 2, 2, 1),
        ("half_async", 2, 2, 2),
        ("geo", 2, 1, 1),
    ],
)
@pytest.mark.parametrize("check", checks_of("embedding_bounded.py"))
def test_on_workers_and_servers(run_check, check, mode, workers, ps, replicas):
    run_check(check, mode, replicas, workers=workers, ps=ps)
