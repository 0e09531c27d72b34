"""Rows of many files, with workers that are only numbers."""

import collections

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from strategies.data import read_files as reading
from strategies.data.read_files import batches_of, examples_of, names_of, shard_unit
from strategies.data.sharding import mark_sharded, shard_dataset, undo_sharding
from tests.support.check_jobs import checks_of
from tests.support.fakes import FakeWorker, with_steps


def use(monkeypatch, worker):
    monkeypatch.setattr(reading, "collectives_of", lambda strategy: worker)
    monkeypatch.setattr(reading, "collectives_in_step", lambda strategy: worker)


def files_of(directory, counts):
    """Writes files of so many rows each, all rows different; returns their names."""
    names = []
    for number, count in enumerate(counts):
        path = directory / f"part-{number:03}.txt"
        path.write_text("".join(f"{number}:{row}\n" for row in range(count)))
        names.append(str(path))
    return names


def text(rows):
    return [row.numpy().decode() for row in rows]


def all_rows(counts):
    return sorted(f"{number}:{row}" for number, count in enumerate(counts) for row in range(count))


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.integers(1, 3),
    st.sampled_from(["files", "rows"]),
    st.sampled_from([0, 5]),
)
def test_each_example_is_one_workers_once_an_epoch(tmp_path_factory, counts, size, shard, shuffle):
    names = files_of(tmp_path_factory.mktemp("files"), counts)
    parts = [
        examples_of(names, with_steps(rank, size), shard=shard, shuffle=shuffle, seed=1, readers=2)
        for rank in range(size)
    ]
    for _ in range(2):
        assert sorted(sum((text(part) for part in parts), [])) == all_rows(counts)
    if shard == "rows":
        lengths = [len(text(part)) for part in parts]
        assert max(lengths) - min(lengths) <= 1


def test_files_are_shared_out_by_their_place(tmp_path):
    names = files_of(tmp_path, [2, 3, 1, 4, 2])
    for rank in range(2):
        rows = text(examples_of(names, with_steps(rank, 2), shard="files", shuffle=100))
        assert {row.split(":")[0] for row in rows} == {str(n) for n in range(5) if n % 2 == rank}


def test_examples_are_taken_from_several_files_in_turn(tmp_path):
    names = files_of(tmp_path, [2, 2, 2])
    assert text(examples_of(names, with_steps(0, 1), readers=1)) == all_rows([2, 2, 2])
    two = text(examples_of(names, with_steps(0, 1), readers=2))
    assert two == ["0:0", "1:0", "0:1", "1:1", "2:0", "2:1"]


@pytest.mark.parametrize("shard", ["files", "rows"])
def test_a_seed_fixes_the_orders_of_all_epochs(tmp_path, shard):
    names = files_of(tmp_path, [20, 30, 10, 20])

    def orders(seed):
        rows = examples_of(names, with_steps(0, 2), shuffle=30, seed=seed, shard=shard)
        return [text(rows) for _ in range(3)]

    first = orders(7)
    assert orders(7) == first
    assert orders(8) != first
    assert len(set(map(tuple, first))) == 3


# Worker 0 has 7 rows, worker 1 has 4, worker 2 has 1; batches of 6 are 2 rows of each.
COUNTS = [7, 4, 1]
STEPS = [4, 2, 1]


def epoch(tmp_path, monkeypatch, uneven, rank, counts=COUNTS, steps=STEPS):
    use(monkeypatch, with_steps(rank, 3, steps))
    dataset = strategies.read_files(
        files_of(tmp_path, counts), None, 6, shuffle=0, shard="files", uneven=uneven
    )
    batches = [text(batch) for batch in dataset]
    assert dataset.cardinality() == len(batches)
    assert [len(batch) for batch in dataset] == [len(batch) for batch in batches]
    return batches


@pytest.mark.parametrize("rank", range(3))
def test_empty_batches_let_every_example_come_once(tmp_path, monkeypatch, rank):
    batches = epoch(tmp_path, monkeypatch, "empty", rank)
    own = [f"{rank}:{row}" for row in range(COUNTS[rank])]
    assert batches == [own[start : start + 2] for start in range(0, 8, 2)]


@pytest.mark.parametrize("rank", range(3))
def test_cut_ends_with_the_first_worker_that_is_done(tmp_path, monkeypatch, rank):
    batches = epoch(tmp_path, monkeypatch, "cut", rank)
    assert batches == [[f"{rank}:{row}" for row in range(COUNTS[rank])][:2]]


@pytest.mark.parametrize("rank", range(3))
def test_resampling_fills_all_batches_up(tmp_path, monkeypatch, rank):
    batches = epoch(tmp_path, monkeypatch, "resample", rank)
    assert [len(batch) for batch in batches] == [2, 2, 2, 2]
    times = collections.Counter(sum(batches, []))
    assert len(times) == COUNTS[rank]  # each row, none more than once more than another
    assert max(times.values()) - min(times.values()) <= 1


def test_a_worker_without_examples(tmp_path, monkeypatch):
    assert epoch(tmp_path, monkeypatch, "resample", 2, [3, 1, 0], [2, 1, 0]) == [[], []]
    with pytest.raises(ValueError, match="no examples for worker 2. Pass uneven='empty'"):
        epoch(tmp_path, monkeypatch, "cut", 0, [3, 1, 0], [2, 1, 0])


def test_a_worker_without_examples_learns_their_shape(tmp_path, monkeypatch):
    def reader(file):
        return tf.data.TextLineDataset(file).map(lambda row: tf.strings.split(row, ":"))

    def read(worker, **options):
        use(monkeypatch, worker)
        return strategies.read_files(names, None, 2, reader=reader, shuffle=0, **options)

    names = files_of(tmp_path, [3, 0])
    # What the others bring: names, a number of batches, and whether there is a row, and its size.
    others = {(1, 1): [3], (2, 2): [[1, 2]]}
    worker = FakeWorker(1, 2, lambda _, mine: others.get((len(mine.shape), mine.shape[-1]), mine))
    monkeypatch.setattr(reading, "_check_same_names", lambda names, collectives: None)
    assert [batch.shape for batch in read(worker)] == [[0, 2]] * 3
    with pytest.raises(ValueError, match="must return tensors of known shape"):
        read(FakeWorker(1, 2, lambda _, mine: mine), steps=2)


@pytest.mark.parametrize(
    ("uneven", "steps", "sizes"),
    [
        ("empty", None, [2, 2, 1]),
        ("cut", None, [2, 2, 1]),
        ("resample", None, [2, 2, 2]),
        ("empty", 2, [2, 2]),
        ("empty", 4, [2, 2, 1, 0]),
        ("resample", 4, [2, 2, 2, 2]),
    ],
)
def test_one_worker(tmp_path, uneven, steps, sizes):
    names = files_of(tmp_path, [5])
    strategy = tf.distribute.get_strategy()
    dataset = strategies.read_files(names, strategy, 2, uneven=uneven, steps=steps)
    for _ in range(2):
        assert [len(batch) for batch in dataset] == sizes


def test_options_that_are_set_later_change_no_part():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    rows = tf.data.Dataset.range(4)
    mine = mark_sharded(rows.batch(2), lambda: rows.batch(4)).with_options(options)
    found = [batch.numpy().tolist() for batch in shard_dataset(mine, with_steps(0, 2))]
    assert found == [[0, 1], [2, 3]]
    assert [batch.numpy().tolist() for batch in undo_sharding(mine)] == [[0, 1, 2, 3]]
    assert undo_sharding(mark_sharded(rows.batch(2))) is None


def test_a_batch_is_cut_for_several_replicas():
    rows = tf.data.Dataset.range(4)
    shared = shard_dataset(mark_sharded(batches_of(rows, 3, "empty", 2)), with_steps(0, 2), 2)
    batches = [[part.numpy().tolist() for part in batch.values] for batch in shared]
    assert batches == [[[0, 1], [2]], [[3], []]]
    whole = mark_sharded(batches_of(rows, 3, "empty", 2))
    assert shard_dataset(whole, with_steps(1, 2)) is whole


def test_the_first_workers_have_one_example_more(tmp_path, monkeypatch):
    sizes = []
    for rank in range(3):
        use(monkeypatch, with_steps(rank, 3))
        dataset = strategies.read_files(files_of(tmp_path, [9, 9, 9]), None, 8)
        sizes.append(len(next(iter(dataset))))
    assert sizes == [3, 3, 2]


def test_any_reader_and_any_structure(tmp_path):
    path = str(tmp_path / "part.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for value in (b"a", b"b", b"c"):
            writer.write(value)
    strategy = tf.distribute.get_strategy()

    def reader(file):
        return tf.data.TFRecordDataset(file).map(lambda row: ({"row": row}, tf.strings.length(row)))

    for uneven in ("empty", "cut", "resample"):
        dataset = strategies.read_files(path, strategy, 2, reader=reader, shuffle=0, uneven=uneven)
        first = next(iter(dataset))
        assert first[0]["row"].numpy().tolist() == [b"a", b"b"]
        assert first[1].numpy().tolist() == [1, 1]


def test_fewer_files_than_workers_is_said_with_their_names(tmp_path, monkeypatch):
    names = files_of(tmp_path, [4])
    said = []
    monkeypatch.setattr(
        "strategies.data.read_files.logging.warning", lambda text, *a: said.append(text % a)
    )
    assert shard_unit(names, "auto", with_steps(1, 2)) == "rows"
    assert text(examples_of(names, with_steps(1, 2), shard="rows")) == ["0:1", "0:3"]
    assert (
        len(said) == 1 and f"reads all of {names[0]} and keeps one of every 2 examples" in said[0]
    )
    assert shard_unit(names, "rows", with_steps(1, 2)) == "rows"
    assert shard_unit(names, "auto", with_steps(0, 1)) == "files"
    assert len(said) == 1
    with pytest.raises(ValueError, match="1 for 2 workers: .*part-000.txt. Split them into more"):
        shard_unit(names, "files", with_steps(1, 2))


def test_names_and_patterns(tmp_path):
    names = files_of(tmp_path, [1, 1, 1])
    assert names_of(str(tmp_path / "part-*")) == names
    assert names_of([names[2], tmp_path / "part-00[01]*", names[0]]) == names
    with pytest.raises(ValueError, match="Received: '.*missing', which matches none"):
        names_of([names[0], str(tmp_path / "missing")])
    with pytest.raises(ValueError, match="Received: none"):
        names_of([])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer >= 1. Received: 0"),
        ({"readers": 0}, "readers must be an integer >= 1"),
        ({"shuffle": True}, "shuffle must be an integer >= 0. Received: True"),
        ({"steps": 0}, "steps must be an integer >= 1. Received: 0"),
        ({"shard": "file"}, "shard must be one of 'auto', 'files', 'rows'. Received: 'file'"),
        ({"uneven": "drop"}, "uneven must be one of 'empty', 'resample', 'cut'. Received: 'drop'"),
        (
            {"uneven": "cut", "steps": 2},
            "and steps cannot be combined, .* Received: steps=2",
        ),
    ],
)
def test_wrong_arguments(tmp_path, arguments, message):
    arguments = {"batch_size": 2, **arguments}
    with pytest.raises(ValueError, match=message):
        strategies.read_files(files_of(tmp_path, [1]), tf.distribute.get_strategy(), **arguments)


def test_a_batch_has_an_example_for_each_worker(tmp_path, monkeypatch):
    use(monkeypatch, with_steps(0, 3))
    with pytest.raises(ValueError, match="the number of workers, 3. Received: batch_size=2"):
        strategies.read_files(files_of(tmp_path, [1, 1, 1]), None, 2)


@pytest.mark.parametrize("api", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "check",
    checks_of(
        "reading.py",
        slow=[
            "examples_in_another_order_on_each_worker_are_refused",
            "training_where_some_steps_are_empty",
            "training_cut_to_the_fewest_steps",
            "training_to_the_most_steps",
            "every_example_comes_once_where_examples_are_sharded",
        ],
    ),
)
def test_training_from_files(run_check, check, api):
    run_check(check, api)


@pytest.mark.slow
@pytest.mark.parametrize("check", checks_of("reading.py"))
def test_training_from_files_with_several_replicas(run_check, check):
    run_check(check, "tf_keras", 2)
