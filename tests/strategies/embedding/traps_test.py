"""What other systems of embeddings fell into: a test by the name of each trap.

Workers are threads of this process that meet where collectives do. What holds for them holds for
processes too: embedding.py and embedding_life.py in tests/distributed train on real ones.
"""

import ast
import functools
import importlib
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies import (
    Admission,
    DistributedEmbedding,
    Eviction,
    FeatureConfig,
    TableConfig,
)
from strategies.collectives import LocalCollectives
from strategies.embedding.checkpoint import npy_stream, snapshot
from strategies.embedding.shard.hashing import shard_of
from tests.support.worker_threads import on_workers

pytestmark = pytest.mark.training

ENDS = [-(2**63), -3, -2, -1, 0, 1, 2**63 - 2, 2**63 - 1]


def layer_of(collectives, *arguments, **options):
    layer = DistributedEmbedding(*arguments, name="table", **options)
    layer._collectives = collectives
    layer.build()
    return layer


def step(layer, optimizer, ids, scale=1.0):
    """One step in which each row's gradient is `scale`; returns the rows that the ids had."""
    with tf.GradientTape() as tape:
        rows = layer(tf.constant(ids, tf.int64), training=True)
        loss = tf.reduce_sum(rows) * scale
    gradients = tape.gradient(loss, layer.trainable_variables)
    optimizer.apply(gradients, layer.trainable_variables)
    return rows.numpy()


def by_id(results):
    """Returns the rows of all workers by id, and that no two have the same."""
    pairs = [pair for ids, rows in results for pair in zip(ids.tolist(), rows, strict=True)]
    assert len(dict(pairs)) == len(pairs)
    return {one: row.tolist() for one, row in sorted(dict(pairs).items())}


def test_duplicates_of_several_workers_are_added_up():
    def worker(collectives):
        layer = layer_of(collectives, 1, embeddings_initializer="zeros")
        step(layer, keras.optimizers.SGD(1.0), [7, 7, 8] if collectives.rank else [7, 9])
        return layer.rows()

    assert by_id(on_workers(2, worker)) == {7: [-3.0], 8: [-1.0], 9: [-1.0]}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_a_gradient_has_one_scale_for_any_number_of_workers(name):
    batches = np.random.default_rng(0).integers(0, 9, size=[4, 12])

    def worker(collectives):
        n, rank = collectives.size, collectives.rank
        layer = layer_of(collectives, 3, embeddings_initializer="normal")
        optimizer = getattr(keras.optimizers, name)(0.1)
        for batch in batches:
            # The mean over a worker's examples, divided by the number of workers, as Keras does.
            step(layer, optimizer, batch[rank::n], scale=1 / len(batch[rank::n]) / n)
        return layer.rows()

    one, three = (by_id(on_workers(size, worker)) for size in (1, 3))
    assert list(one) == list(three)
    np.testing.assert_allclose(list(one.values()), list(three.values()), atol=1e-6)


def test_a_mean_is_divided_after_the_sum_and_an_empty_bag_is_zero():
    bags = tf.ragged.constant([[1, 2, 4], [], [1]], tf.int64)

    def worker(collectives):
        rows = layer_of(collectives, 2, embeddings_initializer="normal")(np.array([1, 2, 4]))
        layer = layer_of(collectives, 2, combiner="mean", embeddings_initializer="normal")
        return layer(bags).numpy(), rows.numpy()

    for found, rows in on_workers(2, worker):
        np.testing.assert_allclose(found, [rows.mean(axis=0), [0, 0], rows[0]], atol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_the_gradient_of_a_bag_without_ids_or_weight_is_a_number(combiner):
    layer = layer_of(LocalCollectives(), 2, combiner=combiner, embeddings_initializer="ones")
    bags = tf.ragged.constant([[1, 2], [], [3]], tf.int64)
    weights = tf.constant([1.0, 2.0, 0.0])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(layer(bags, weights=bags.with_flat_values(weights), training=True))
    of_weights, of_rows = tape.gradient(loss, [weights, *layer.trainable_variables])
    # The derivative of (a + 2 b) / n by a and by b, of two ones a row; n is 1, 3 or sqrt(5).
    n = {"sum": 1.0, "mean": 3.0, "sqrtn": 5**0.5}[combiner]
    by_id = dict(zip(layer.rows()[0].tolist(), of_rows.values.numpy()[:, 0], strict=True))
    np.testing.assert_allclose([by_id[one] for one in (1, 2, 3)], [1 / n, 2 / n, 0.0], rtol=1e-6)
    slopes = {"sum": [2.0, 2.0, 2.0], "mean": [0.0, 0.0, 0.0]}
    slopes["sqrtn"] = [2 / n - 6 * 1 / n**3, 2 / n - 6 * 2 / n**3, 0.0]
    np.testing.assert_allclose(of_weights, slopes[combiner], atol=1e-6)


@pytest.mark.parametrize("nothing", [[], [[]], [[0, 0]]])
def test_a_worker_without_ids_takes_part(nothing):
    def worker(collectives):
        layer = layer_of(
            collectives, 1, combiner="sum", mask_zero=True, embeddings_initializer="zeros"
        )
        optimizer = keras.optimizers.Adam(1.0, epsilon=0.0)
        rows = step(layer, optimizer, nothing if collectives.rank else [[5, 0]])
        assert np.isfinite(rows).all()
        assert layer.statistics()["table"]["rows"] == 1
        assert np.shape(step(layer, optimizer, nothing))[-1] == 1  # nobody has any
        return layer.rows()

    np.testing.assert_allclose(by_id(on_workers(2, worker))[5], [-1.0], rtol=1e-5)


@pytest.mark.parametrize("unseen", ["initial", "zeros"])
def test_an_id_without_a_row_is_not_gathered(unseen):
    layer = layer_of(LocalCollectives(), 2, embeddings_initializer="ones", unseen=unseen)
    absent = 1.0 if unseen == "initial" else 0.0
    assert layer(np.array([3, -3])).numpy().tolist() == [[absent] * 2] * 2  # of no rows at all
    assert layer.statistics()["table"]["rows"] == 0
    step(layer, keras.optimizers.SGD(1.0), [3])
    assert layer(np.array([2, 3, 4])).numpy()[:, 0].tolist() == [absent, 0.0, absent]
    assert layer.rows()[0].tolist() == [3]


@pytest.mark.parametrize("admission", [None, Admission(2), Admission(2, memory=2**16)])
def test_every_int64_is_an_id(admission):
    def worker(collectives):
        layer = layer_of(
            collectives, 2, embeddings_initializer="normal", admission=admission,
            eviction=Eviction(age=1),
        )  # fmt: skip
        first = layer(np.array(ENDS)).numpy()
        mine = ENDS[collectives.rank :: 2]
        if admission is not None:
            step(layer, keras.optimizers.SGD(1.0), mine)
            assert len(layer.rows()[0]) == 0
        step(layer, keras.optimizers.SGD(1.0), mine)
        found = layer.rows()
        step(layer, keras.optimizers.SGD(1.0), [])
        assert layer.evict() == {"table": len(ENDS)}
        assert len(layer.rows()[0]) == 0
        return first, found

    results = on_workers(2, worker)
    assert len(np.unique(results[0][0], axis=0)) == len(ENDS)
    found = by_id([rows for _, rows in results])
    assert list(found) == ENDS
    np.testing.assert_allclose(list(found.values()), results[0][0] - 1.0, atol=1e-6)


def test_a_row_and_its_slot_variables_are_of_one_moment_and_none_is_left_unset(tmp_path):
    make = functools.partial(keras.optimizers.Adagrad, 1.0, initial_accumulator_value=0.5)
    first, second = (
        layer_of(LocalCollectives(), 1, embeddings_initializer="zeros") for _ in range(2)
    )
    optimizer = make()
    first.set_rows(np.array([1]), np.array([[0.0]]))
    first.save_rows(str(tmp_path))  # before there are slot variables
    step(first, optimizer, [1, 2])
    first.set_rows(np.array([3]), np.array([[0.0]]))  # a row that no step has touched
    packed = first.snapshot_rows()
    assert {len(packed[f"0/{name}"]) for name in ("ids", "rows", "times", "touches")} == {3}
    assert packed["0/slot/accumulator"].tolist() == [[1.5], [1.5], [0.5]]
    step(first, optimizer, [3])
    second.load_rows(str(tmp_path))
    step(second, make(), [1])
    again = second.snapshot_rows()
    assert (again["0/ids"].tolist(), again["0/slot/accumulator"].tolist()) == ([1], [[1.5]])
    rows = first.rows()[1]
    np.testing.assert_array_equal(rows, [second.rows()[1][0]] * 3)


def test_any_number_of_workers_restores_and_other_tables_are_named(tmp_path):
    def save(collectives):
        layer = layer_of(collectives, 2, embeddings_initializer="normal")
        for ids in (ENDS, ENDS[2:]):
            step(layer, keras.optimizers.Adam(0.1), ids)
        layer.save_rows(str(tmp_path))
        return layer.snapshot_rows()

    def load(collectives):
        layer = layer_of(collectives, 2)
        layer.load_rows(str(tmp_path))
        return layer.snapshot_rows()

    def in_order(arrays):
        order = np.argsort(arrays["0/ids"])
        names = ("ids", "rows", "times", "touches", "slot/momentum", "slot/velocity")
        return {name: arrays[f"0/{name}"][order].tolist() for name in names}

    saved = in_order(on_workers(2, save)[0])
    assert saved["ids"] == ENDS
    for size in (1, 3):
        assert all(in_order(arrays) == saved for arrays in on_workers(size, load))
    with pytest.raises(ValueError, match=r"Received: \{'table': 2\} in .*, for \{'table': 3\}"):
        layer_of(LocalCollectives(), 3).load_rows(str(tmp_path))


@pytest.fixture
def pieces_of_three_rows(monkeypatch):
    """Lets rows of 16 numbers with momentum be moved three at a time, and more of smaller ones."""
    size = 3 * (2 * 64 + 60)
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", size)
    monkeypatch.setattr(npy_stream, "_CHUNK_BYTES", size)


def test_what_moves_in_pieces_is_whole(tmp_path, pieces_of_three_rows):
    rule = {"eviction": Eviction(count=2), "embeddings_initializer": "normal"}

    def save(collectives):
        layer = layer_of(collectives, 16, **rule)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
        step(layer, optimizer, [*range(20), *range(10)])
        layer.save_rows(str(tmp_path / "rows"))
        step(layer, optimizer, range(3, 10))
        step(layer, optimizer, [50, 50])
        layer.evict()
        layer.save_rows(str(tmp_path / "rows"), delta=True)
        layer.export_rows(str(tmp_path / "plain"))
        return layer.snapshot_rows()

    def load(collectives):
        layer, plain = (layer_of(collectives, 16, **rule) for _ in range(2))
        layer.load_rows(str(tmp_path / "rows"))
        plain.import_rows(str(tmp_path / "plain"))
        return layer.snapshot_rows(), plain.rows()

    def in_order(arrays):
        order = np.argsort(arrays["0/ids"])
        is_of_rows = {name: len(np.atleast_1d(each)) == len(order) for name, each in arrays.items()}
        return {name: arrays[name][order] if is_of_rows[name] else arrays[name] for name in arrays}

    saved = in_order(on_workers(2, save)[0])
    ids = saved["0/ids"].tolist()
    assert ids == [*range(20), 50] and saved["0/slot/momentum"].any()
    first = np.load(tmp_path / "rows/000001/table0-worker0-rows.npy")
    assert first.shape[0] > 6, "more than two pieces"
    changed = [np.load(file) for file in (tmp_path / "rows/000002").glob("*-ids.npy")]
    assert sorted(np.concatenate(changed)) == [*range(3, 10), 50]
    for size in (1, 3):
        results = on_workers(size, load)
        for arrays, _ in results:
            np.testing.assert_equal(in_order(arrays), saved)
        rows = by_id([plain for _, plain in results])
        np.testing.assert_array_equal(list(rows.values()), saved["0/rows"])
    np.save(tmp_path / "rows/000001/table0-worker0-times.npy", np.zeros([1], np.int64))
    with pytest.raises(ValueError, match="times.npy of 136 bytes, where 184 were written"):
        layer_of(LocalCollectives(), 16, **rule).load_rows(str(tmp_path / "rows"))


@pytest.mark.in_turn
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 2), (2, 1)])
def test_a_full_table_is_restored_by_another_number_of_workers(tmp_path, before, after):
    rule = {"overflow": "share", "embeddings_initializer": "ones"}
    many, room = np.arange(60), 7
    make = functools.partial(keras.optimizers.SGD, 1.0, momentum=0.5)

    def save(collectives):
        layer = layer_of(collectives, 1, room, **rule)
        step(layer, make(), many if collectives.rank == 0 else [])
        layer.save_rows(str(tmp_path / "rows"))
        layer.export_rows(str(tmp_path / "plain"))
        return layer.snapshot_rows()

    def load(collectives):
        layers = [layer_of(collectives, 1, room, **rule) for _ in range(3)]
        layers[0].load_rows(str(tmp_path / "rows"))
        layers[1].restore_rows(saved)
        layers[2].import_rows(str(tmp_path / "plain"))
        rows = [layer(many).numpy()[:, 0] for layer in layers]
        counts = [layer.snapshot_rows()["0/overflow_touches"].tolist() for layer in layers]
        for layer in layers[:2]:
            step(layer, make(), many if collectives.rank == 0 else [])
        there = [len(layer.rows()[0]) for layer in layers]
        return rows, counts, [layer(many).numpy()[:, 0] for layer in layers[:2]], there

    saved = on_workers(before, save)[0]
    known = np.isin(many, saved["0/ids"])
    owners, owners_now = (shard_of(tf.constant(many), size).numpy() for size in (before, after))
    sharing = np.bincount(owners[~known], minlength=before)
    assert known.sum() == room and saved["0/overflow_rows"][:, 0].tolist() == (-sharing).tolist()
    first = sharing[owners_now % before]
    again = np.bincount(owners_now[~known], minlength=after)[owners_now]
    results = on_workers(after, load)
    for rows, counts, later, _ in results:
        for each in rows[:2]:
            np.testing.assert_array_equal(each, np.where(known, 0.0, -first))
        np.testing.assert_array_equal(rows[2], 0.0)
        taken = [saved["0/overflow_touches"][rank % before] for rank in range(after)]
        assert counts == [taken, taken, [0] * after]
        for each in later:  # with the momentum that was saved
            np.testing.assert_array_equal(each, np.where(known, -1.5, -first - 0.5 * first - again))
    assert np.sum([there for *_, there in results], axis=0).tolist() == [room] * 3


@pytest.mark.in_turn
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_a_table_has_no_more_rows_than_it_may_wherever_they_come_from(tmp_path, before, after):
    many = np.arange(60)
    # More than the part of the worker that they all come to.
    ids = many[shard_of(tf.constant(many), after).numpy() == 0][:6]
    arrays = ids, np.ones([6, 1])

    def save(collectives):
        layer = layer_of(collectives, 1)
        layer.set_rows(*arrays)
        layer.save_rows(str(tmp_path / "rows"))
        layer.export_rows(str(tmp_path / "plain"))
        return layer.snapshot_rows()

    ways = [
        lambda layer: layer.load_rows(str(tmp_path / "rows")),
        lambda layer: layer.restore_rows(saved),
        lambda layer: layer.import_rows(str(tmp_path / "plain")),
        lambda layer: layer.set_rows(*arrays),
    ]

    def load(collectives):
        rows, messages = [], []
        for way in ways:
            layer = layer_of(collectives, 1, 9, overflow="share")
            way(layer)
            step(layer, keras.optimizers.SGD(1.0), many)
            rows.append(len(layer.rows()[0]))
            try:
                way(layer_of(collectives, 1, 5, overflow="share"))
            except ValueError as error:
                messages.append(str(error))
        return rows, messages

    saved = on_workers(before, save)[0]
    results = on_workers(after, load)
    assert np.sum([rows for rows, _ in results], axis=0).tolist() == [9] * len(ways)
    for _, messages in results:
        assert len(messages) == len(ways)
        for message in messages:
            assert "Received: rows of 6 ids for input_dim=5. Raise input_dim" in message


@pytest.mark.parametrize("memory", [None, 4096])
def test_counts_times_and_filters_are_saved(memory, tmp_path):
    options = {"admission": Admission(3, memory=memory), "eviction": Eviction(age=3)}

    def save(collectives):
        layer = layer_of(collectives, 1, **options)
        step(layer, keras.optimizers.SGD(1.0), [1, 1] if collectives.rank else [1, 2])
        step(layer, keras.optimizers.SGD(1.0), [2] if collectives.rank else [])
        layer.save_rows(str(tmp_path))

    on_workers(2, save)
    layer = layer_of(LocalCollectives(), 1, **options)
    layer.load_rows(str(tmp_path))
    assert layer.rows()[0].tolist() == [1]
    step(layer, keras.optimizers.SGD(1.0), [2, 3, 3])
    assert layer.rows()[0].tolist() == [1, 2]  # 2 came for the third time, 3 did not
    step(layer, keras.optimizers.SGD(1.0), [2])
    assert layer.evict() == {"table": 1}  # 1 came three steps ago, before it was saved
    assert layer.rows()[0].tolist() == [2]


@pytest.mark.parametrize(
    ("memory", "message"),
    [(8192, "with the memory that it was saved with. Received: 4096 bytes"),
     (None, "Received: a sketch for 'table', whose admission has memory=None")],
)  # fmt: skip
def test_a_filter_that_another_has_no_use_for_is_refused(tmp_path, memory, message):
    layer, other = (
        layer_of(LocalCollectives(), 1, admission=Admission(3, memory=each))
        for each in (4096, memory)
    )
    step(layer, keras.optimizers.SGD(1.0), [1])
    layer.save_rows(str(tmp_path))
    with pytest.raises(ValueError, match=message):
        other.load_rows(str(tmp_path))


@pytest.mark.in_turn
@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_counted_for_each_id_goes_on_in_a_sketch(tmp_path, workers):
    def count(collectives):
        layer = layer_of(collectives, 1, admission=Admission(3))
        ids = [1, 1, -2] if collectives.rank == 0 else []
        step(layer, keras.optimizers.SGD(1.0), ids)
        layer.save_rows(str(tmp_path))
        step(layer, keras.optimizers.SGD(1.0), [5] if collectives.rank == 0 else [])
        layer.save_rows(str(tmp_path), delta=True)  # the counts of both, each once

    def go_on(collectives):
        layer = layer_of(collectives, 1, admission=Admission(3, memory=2**16))
        layer.load_rows(str(tmp_path))
        step(layer, keras.optimizers.SGD(1.0), [1, -2, 5] if collectives.rank == 0 else [])
        return layer.rows()

    on_workers(2, count)
    assert list(by_id(on_workers(workers, go_on))) == [1]


def test_a_row_that_is_taken_away_in_a_step_does_not_come_back_used():
    layer = layer_of(LocalCollectives(), 1, embeddings_initializer="ones", eviction=Eviction(age=1))
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
    step(layer, optimizer, [1, 2])
    step(layer, optimizer, [1])
    assert layer.evict() == {"table": 1}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1]), training=True))
    gradients = tape.gradient(loss, layer.trainable_variables)
    layer(np.array([9]), training=True)  # of another step, so that 1 is of age
    assert layer.evict() == {"table": 1}
    optimizer.apply(gradients, layer.trainable_variables)  # of a row that nobody has
    assert layer.rows()[0].tolist() == [9]
    step(layer, optimizer, [1, 3])
    assert dict(zip(layer.rows()[0].tolist(), layer.rows()[1][:, 0].tolist(), strict=True)) == {
        1: 0.0, 3: 0.0, 9: 1.0,
    }  # fmt: skip
    step(layer, optimizer, [1, 3])
    assert layer(np.array([1, 3])).numpy()[:, 0].tolist() == [-1.5, -1.5]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "half_async", "geo"])
def test_servers_save_and_evict_when_the_steps_before_are_done(train, mode):
    train("embedding_racing.py", mode, workers=2, ps=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TableConfig("t", 2, learning_rate=0.1),
        lambda: FeatureConfig(TableConfig("t", 2), max_ids_per_partition=4),
        lambda: DistributedEmbedding(2, embeddings_regularizer="l2"),
        lambda: DistributedEmbedding(2, embeddings_constraint="non_neg"),
        lambda: DistributedEmbedding(
            features={"f": FeatureConfig(TableConfig("t", 2))}, combiner="sum"
        ),
    ],
)
def test_an_option_that_is_not_honoured_is_an_error(make):
    with pytest.raises((TypeError, ValueError), match="unexpected keyword|: embeddings_|Move it"):
        make()


def test_nothing_of_other_packages_is_replaced():
    modules = [keras, keras.layers, keras.optimizers, tf, tf.train, tf.nn, tf.lookup, tf.raw_ops]
    before = [dict(vars(module)) for module in modules]
    step(layer_of(LocalCollectives(), 1), keras.optimizers.Adam(1.0), [1])
    for module, attributes in zip(modules, before, strict=True):
        changed = {name for name, value in attributes.items() if vars(module)[name] is not value}
        assert not changed, (module, changed)
    # Nor at import.
    for path in Path(strategies.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        for node in ast.walk(tree):
            for target in getattr(node, "targets", []) if isinstance(node, ast.Assign) else []:
                while isinstance(target, ast.Attribute):
                    target = target.value
                    assert not (isinstance(target, ast.Name) and target.id in imported), path
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            sets = is_call and node.func.id == "setattr"
            # The one method of Keras's that is overridden while a step runs: loss scaling. And
            # tf_keras's generator of seeds, which a replica's thread gets from its caller, and
            # Python's streams under `tf-config exec`.
            others = {
                "keras_loss_scaling.py": "cls",
                "keras_steps.py": "seeds",
                "progress_bars.py": "sys",
            }
            assert not sets or ast.unparse(node.args[0]) == others.get(path.name, "self"), path


def test_features_of_one_width_share_one_exchange():
    def exchanges(widths):
        features = {
            str(number): FeatureConfig(TableConfig(f"t{number}", width))
            for number, width in enumerate(widths)
        }

        def worker(collectives):
            layer = layer_of(collectives, features=features)
            inputs = {name: tf.constant([1, 2], tf.int64) for name in features}
            with tf.GradientTape() as tape:
                outputs = layer(inputs, training=True)
                loss = tf.add_n([tf.reduce_sum(rows) for rows in outputs.values()])
            tape.gradient(loss, layer.trainable_variables)
            return collectives.exchanges

        return on_workers(2, worker)

    assert exchanges([2]) == exchanges([2, 2, 2]) == [3, 3]  # of ids, rows and gradients
    assert exchanges([2, 3, 2]) == [6, 6]


def test_workers_have_batches_of_any_sizes():
    sizes = [5, 0, 2]

    def worker(collectives):
        layer = layer_of(collectives, 1, embeddings_initializer="zeros")
        ids = np.arange(sizes[collectives.rank])
        assert step(layer, keras.optimizers.SGD(1.0), ids).shape == (len(ids), 1)
        return layer.rows()

    expected = {one: [-float(sum(size > one for size in sizes))] for one in range(5)}
    assert by_id(on_workers(3, worker)) == expected


def test_the_bytes_between_workers_are_counted():
    features = {
        name: FeatureConfig(TableConfig(name, width))
        for name, width in {"a": 2, "b": 2, "c": 3}.items()
    }
    ids = {"a": [[1, 1, 2], [1, 5]], "b": [[7], [7, 8, 9]], "c": [[], [-4]]}

    def worker(collectives):
        layer = layer_of(collectives, features=features)
        inputs = {name: tf.constant(ids[name][collectives.rank], tf.int64) for name in ids}
        with tf.GradientTape() as tape:
            outputs = layer(inputs, training=True)
            loss = tf.add_n([tf.reduce_sum(rows) for rows in outputs.values()])
        tape.gradient(loss, layer.trainable_variables)
        layer({**inputs, "a": tf.constant([1, 2], tf.int64)})
        return layer.statistics(), [layer.rows(name)[0].tolist() for name in ids], layer.plan()

    (statistics, *first), (_, *second) = on_workers(2, worker)
    owned = [first[0], second[0]]
    for place, (name, parts) in enumerate(ids.items()):
        width = features[name].table.output_dim
        away = sum(len(set(part) - set(owned[rank][place])) for rank, part in enumerate(parts))
        if name == "a":
            again = sum(len({1, 2} - set(owned[rank][place])) for rank in range(2))
        else:
            again = away
        found = statistics[name]
        assert found["bytes_ids"] == 24 * (away + again)
        assert found["bytes_rows"] == 4 * width * (away + again)
        assert found["bytes_gradients"] == 4 * width * away
        row = 4 * width + 56
        rows = len(owned[0][place]) + len(owned[1][place])
        cells = [cell.strip() for cell in first[1].splitlines()[3 + place].split("│")[1:-1]]
        assert cells == [
            name, "sharded over 2 workers", f"{rows} x {width}",
            f"{row} (no slot variables yet)", f"{rows * row} bytes",
            f"{away * (24 + 8 * width)} bytes",
        ]  # fmt: skip
    assert first[1] == second[1]
    assert "a hash of the id selects the only worker that has its row" in first[1]


@pytest.mark.in_turn
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_is_one_of_all_replicas_however_often_it_looks_up(replicas):
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"][:replicas])
    with strategy.scope():
        layer = DistributedEmbedding(1, eviction=Eviction(age=2), name="table")
        layer.build()
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)

    def replica(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True)) + tf.reduce_sum(
                layer(ids + 100, training=True)
            )
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    run = tf.function(lambda ids: strategy.run(replica, args=(ids,)))
    for each in (1, 2):
        run(tf.constant([each], tf.int64))
    assert layer.evict() == {"table": 0}, "1 came a step ago"
    assert layer.snapshot_rows()["0/step"] == 2
    run(tf.constant([3], tf.int64))
    assert layer.evict() == {"table": 2}
    assert layer.rows()[0].tolist() == [2, 3, 102, 103]


@pytest.mark.parametrize("memory", [None, 1024])
def test_the_plan_of_one_worker_has_slot_variables_and_what_was_refused(memory):
    layer = layer_of(LocalCollectives(), 2, admission=Admission(2, memory=memory))
    with pytest.raises(ValueError, match="Received: the layer .*, which is not built"):
        DistributedEmbedding(2).plan()
    step(layer, keras.optimizers.Adam(1.0), [1, 1, 2])
    text = layer.plan()
    held = 80 + (48 if memory is None else memory)
    assert "80 (momentum, velocity)" in text
    assert f"│ {held} bytes │ 0 bytes" in text or f"{held / 1024:.1f} KiB" in text
    assert "host memory: a single worker trains" in text
    api = importlib.import_module("strategies.embedding.tf_keras_layer")
    assert api.DistributedEmbedding.plan is DistributedEmbedding.plan


@pytest.mark.slow
def test_copies_in_all_workers_do_what_one_table_does(tmp_path):
    tables = {
        name: TableConfig(name, 2, 50, "normal", placement=placement, optimizer=optimizer)
        for name, placement, optimizer in [
            ("copied", "replicated", None),
            ("a part", "sharded", None),
            ("by itself", "replicated", "adagrad"),
        ]
    }
    features = {name: FeatureConfig(table) for name, table in tables.items()}
    batches = np.random.default_rng(0).integers(-9, 9, [5, 12])

    def train(collectives):
        layer = layer_of(collectives, features=features)
        optimizer = keras.optimizers.Adam(0.1)
        for batch in batches:
            # The second worker's part is empty.
            part = batch if collectives.size == 1 else np.split(batch, [7, 7])[collectives.rank]
            inputs = dict.fromkeys(features, tf.constant(part, tf.int64))
            with tf.GradientTape() as tape:
                outputs = layer(inputs, training=True)
                loss = tf.add_n([tf.reduce_sum(rows**2) for rows in outputs.values()])
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply(gradients, layer.trainable_variables)
        layer.save_rows(str(tmp_path / str(collectives.size)))
        seen = layer(dict.fromkeys(features, tf.constant(range(-10, 10), tf.int64)))
        everything = {name: rows.numpy() for name, rows in seen.items()}
        owned = {name: layer.rows(name)[0].tolist() for name in features}
        return layer.snapshot_rows(), everything, layer.statistics(), layer.plan(), owned

    (one, seen, counted, plan, _), *_ = on_workers(1, train)
    assert "copy" not in plan
    results = on_workers(3, train)
    for packed, everything, statistics, plan, _ in results:
        for key, array in in_order_of_ids(packed).items():
            np.testing.assert_allclose(array, in_order_of_ids(one)[key], atol=2e-6, err_msg=key)
        for name in features:
            np.testing.assert_allclose(everything[name], seen[name], atol=2e-6)
            if tables[name].is_replicated:
                np.testing.assert_array_equal(everything[name], results[0][1][name])
                assert "a copy in each of 3 workers" in plan
                assert statistics[name]["bytes_rows"] == 0 < statistics[name]["bytes_ids"]
            for number in ("rows", "lookups", "new", "imbalance"):
                if tables[name].is_replicated or number != "imbalance":
                    assert statistics[name][number] == counted[name][number], (name, number)
    for name in features:
        ids = [one for *_, owned in results for one in owned[name]]
        assert len(ids) == len(set(ids)) == counted[name]["rows"]

    # What was saved is restored to any placement.
    placements = {"copied": "sharded", "a part": "replicated", "by itself": "sharded"}
    others = {
        name: FeatureConfig(TableConfig(name, 2, 50, "zeros", placement=placement))
        for name, placement in placements.items()
    }

    def load(collectives):
        layer = layer_of(collectives, features=others)
        layer.load_rows(str(tmp_path / "3"))
        layer.set_rows(np.array([1000 + collectives.rank]), np.ones([1, 2]), "a part")
        return layer.snapshot_rows(), layer(dict.fromkeys(features, tf.constant([1000, 1001])))

    for size in (1, 2):
        for packed, added in on_workers(size, load):
            np.testing.assert_array_equal(added["a part"], [[1.0, 1.0], [float(size > 1)] * 2])
            for key, array in in_order_of_ids(results[0][0]).items():
                kept = in_order_of_ids(packed)[key]
                if key.endswith("step"):
                    assert kept == array
                else:
                    np.testing.assert_array_equal(kept[: len(array)], array, key)


def in_order_of_ids(packed):
    """Returns the arrays of tables, each in the order of its ids."""
    found = {}
    for key, array in packed.items():
        ids = packed[key.partition("/")[0] + "/ids"]
        is_of_rows = len(np.shape(array)) and "/initial_slot_" not in key
        found[key] = array[np.argsort(ids)] if is_of_rows else array
    return found
