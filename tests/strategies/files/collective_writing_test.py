"""What is written once; real workers do it in tests/distributed/around.py."""

import os

import pytest
import tensorflow as tf

import strategies
from strategies.files import collective_writing as files
from tests.support.fakes import FakeWorker

STRATEGY = tf.distribute.get_strategy()


def use(monkeypatch, worker):
    monkeypatch.setattr(files, "collectives_of", lambda strategy: worker)
    return worker


def failing(rank, exchange):
    """Returns a worker; the other one reports a failure in an exchange."""

    def other(_, mine):
        if mine.dtype == tf.uint8:
            return mine
        return [int(worker.exchanges == exchange)]

    worker = FakeWorker(rank, others=other)
    return worker


def write(path, text="new"):
    with open(path, "w") as file:
        file.write(text)


def test_the_first_workers_file_takes_its_place_when_all_have_written(tmp_path, monkeypatch):
    worker = use(monkeypatch, FakeWorker(0))
    place = tmp_path / "note.txt"
    write(place, "old")
    with strategies.writing(place, STRATEGY) as path:
        write(path)
        assert place.read_text() == "old" and worker.exchanges == 1
    assert place.read_text() == "new" and worker.exchanges == 2
    assert os.listdir(tmp_path) == ["note.txt"]


def test_the_others_files_are_thrown_away(tmp_path, monkeypatch):
    worker = use(monkeypatch, FakeWorker(1))
    with strategies.writing(tmp_path / "note.txt", STRATEGY) as path:
        write(path)
    assert worker.exchanges == 2
    assert not os.path.exists(os.path.dirname(path)) and not os.listdir(tmp_path)


def test_a_directory_and_several_files_are_moved_whole(tmp_path, monkeypatch):
    use(monkeypatch, FakeWorker(0))
    for text in ("old", "new"):
        with strategies.writing(tmp_path / "model", STRATEGY) as path:
            os.mkdir(path)
            write(os.path.join(path, text))
    assert os.listdir(tmp_path / "model") == ["new"]
    with strategies.writing(str(tmp_path / "point") + "/", STRATEGY) as path:
        tf.train.Checkpoint(a=tf.Variable(1.0)).save(path)
    names = ["checkpoint", "model", "point-1.data-00000-of-00001", "point-1.index"]
    assert sorted(os.listdir(tmp_path)) == names
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "point-1")


def test_a_directory_that_was_there_is_whole_or_gone_at_once(tmp_path, monkeypatch):
    """To remove it takes time, and the job may be killed in it."""
    use(monkeypatch, FakeWorker(0))
    place = tmp_path / "model"
    place.mkdir()
    write(place / "old.txt", "old")
    rename = tf.io.gfile.rename

    def seen(source, target, overwrite=False):
        assert not place.exists() or (place / "old.txt").exists()
        rename(source, target, overwrite)

    monkeypatch.setattr(tf.io.gfile, "rename", seen)
    monkeypatch.setattr(
        tf.io.gfile, "rmtree", lambda path: pytest.fail("removed") if path == str(place) else None
    )
    with strategies.writing(place, STRATEGY) as path:
        os.mkdir(path)
        write(os.path.join(path, "new.txt"))
    assert os.listdir(place) == ["new.txt"]


def test_what_fails_in_the_block_leaves_nothing_behind(tmp_path, monkeypatch):
    worker = use(monkeypatch, FakeWorker(0))
    with pytest.raises(ZeroDivisionError):
        with strategies.writing(tmp_path / "note.txt", STRATEGY) as path:
            write(path)
            raise ZeroDivisionError
    assert not os.listdir(tmp_path) and worker.exchanges == 1


def test_nothing_written_is_an_error(tmp_path, monkeypatch):
    use(monkeypatch, FakeWorker(0))
    with pytest.raises(ValueError, match="Received: nothing written for .*note.txt"):
        with strategies.writing(tmp_path / "note.txt", STRATEGY):
            pass


@pytest.mark.parametrize("exchange", [1, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_another_workers_failure_is_everybodys(tmp_path, monkeypatch, rank, exchange):
    use(monkeypatch, failing(rank, exchange))
    with pytest.raises(RuntimeError, match=f"Received: an error on worker {1 - rank}"):
        with strategies.writing(tmp_path / "note.txt", STRATEGY) as path:
            assert exchange == 2
            write(path)


def test_paths_of_their_own(tmp_path, monkeypatch):
    use(monkeypatch, FakeWorker(0))
    assert strategies.own_path(tmp_path / "log.csv", STRATEGY) == str(tmp_path / "log.csv")
    use(monkeypatch, FakeWorker(1))
    mine = strategies.own_path(tmp_path / "log.csv", STRATEGY)
    assert os.path.basename(mine) == "log.csv"
    assert not mine.startswith(str(tmp_path)) and os.path.isdir(os.path.dirname(mine))
    assert mine != strategies.own_path(tmp_path / "log.csv", STRATEGY)
