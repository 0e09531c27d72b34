"""Rows are restored whole or not at all, and a save that fails leaves what was saved before."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest

import strategies
from strategies.embedding.checkpoint import npy_stream
from strategies.embedding.checkpoint import row_checkpoint as checkpoint
from strategies.files.atomic_files import write_json
from tests.support.worker_threads import on_workers

pytestmark = pytest.mark.training

IDS = np.array([5, -7, 2**62, 11], np.int64)
OLD, NEW = np.full([4, 2], 1.0, np.float32), np.full([4, 2], 2.0, np.float32)
EARLIER = Path(__file__).resolve().parent.parent / "earlier_files/0.1.0/keras/rows"


def new_layer(width=2, **options):
    layer = strategies.DistributedEmbedding(width, name="embedding", **options)
    layer.build()
    return layer


def saved(directory, **options):
    layer = new_layer(**options)
    layer.set_rows(IDS, OLD)
    layer.save_rows(str(directory))
    return layer


def has(layer, rows):
    """Whether a layer has these rows, and no others."""
    ids, found = layer.rows()
    return np.array_equal(ids, np.sort(IDS)) and np.array_equal(found, rows)


def files_of(directory):
    return sorted(path for path in Path(directory).rglob("*") if path.is_file())


def damages(data, cut=16, flips=40):
    """Yields damaged copies of a file: cut at every boundary, and with single bits flipped."""
    for end in {0, 1, len(data) // 2, len(data) - 1} | set(range(0, len(data), cut)):
        yield f"cut at {end}", data[:end]
    yield "longer", data + b"\0"
    for position in range(0, len(data), max(len(data) // flips, 1)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        yield f"bit {position}", bytes(flipped)


def test_a_damaged_file_is_an_error_and_changes_no_row(tmp_path):
    saved(tmp_path)
    layer = new_layer()
    layer.set_rows(IDS, NEW)
    for path in files_of(tmp_path):
        data, seen = path.read_bytes(), 0
        for what, damaged in damages(data):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match="Restore another|Use another") as error:
                layer.load_rows(str(tmp_path))
            seen += 1
            assert has(layer, NEW), (path, what)
            assert "\n" not in str(error.value)
        assert seen > 20
        path.write_bytes(data)
    layer.load_rows(str(tmp_path))
    assert has(layer, OLD)


@pytest.mark.parametrize("name", ["rows", "ids", "times"])
def test_a_file_that_is_missing_is_an_error(tmp_path, name):
    saved(tmp_path)
    (tmp_path / f"000001/table0-worker0-{name}.npy").unlink()
    layer = new_layer()
    layer.set_rows(IDS, NEW)
    with pytest.raises(ValueError, match=f"no file 000001/table0-worker0-{name}.npy"):
        layer.load_rows(str(tmp_path))
    assert has(layer, NEW)


def test_of_two_workers_and_one_server_the_second_worker_saves_nothing(tmp_path):
    saved(tmp_path)
    latest = json.loads((tmp_path / "latest").read_text())
    del latest["crc32"]
    (folder,) = latest["folders"]
    write_json(tmp_path / "latest", {**latest, "workers": {folder: 2}})
    with pytest.raises(ValueError, match="worker1.json"):
        new_layer().load_rows(str(tmp_path))
    write_json(tmp_path / folder / "worker1.json", {"files": {}})
    layer = new_layer()
    layer.load_rows(str(tmp_path))
    assert has(layer, OLD)


def test_a_file_of_0_1_0_that_is_cut_is_an_error(tmp_path):
    shutil.copytree(EARLIER, tmp_path / "rows")
    layer = new_layer(admission=strategies.Admission(1), input_dim=100)
    layer.load_rows(str(tmp_path / "rows"))
    before = layer.rows()
    for path in files_of(tmp_path / "rows/000001"):
        data = path.read_bytes()
        for end in range(0, len(data), 7):
            path.write_bytes(data[:end])
            with pytest.raises(ValueError, match="No row was changed"):
                layer.load_rows(str(tmp_path / "rows"))
        path.write_bytes(data)
        np.testing.assert_array_equal(layer.rows()[1], before[1])


@pytest.mark.parametrize(
    "options", [{"width": 3}, {"admission": strategies.Admission(2, memory=1024)}]
)
def test_rows_of_another_model_are_refused(tmp_path, options):
    saved(tmp_path, admission=strategies.Admission(2, memory=1 << 12))
    layer = new_layer(**options)
    rows = np.full([4, options.get("width", 2)], 2.0, np.float32)
    layer.set_rows(IDS, rows)
    with pytest.raises(ValueError, match="the same names and widths|restored with the memory"):
        layer.load_rows(str(tmp_path))
    assert has(layer, rows)


def test_one_worker_that_finds_damage_keeps_all_from_restoring(tmp_path):
    def save(collectives):
        layer = layer_of(collectives, 2)
        layer.set_rows(IDS, OLD)
        layer.save_rows(str(tmp_path))

    on_workers(2, save)
    (path,) = tmp_path.glob("000001/*worker1-rows.npy")
    path.write_bytes(path.read_bytes()[:-1])
    errors = {}

    def load(collectives):
        layer = layer_of(collectives, 2)
        layer.set_rows(IDS, NEW)
        with pytest.raises((ValueError, RuntimeError)) as error:
            layer.load_rows(str(tmp_path))
        errors[collectives.rank] = error.value
        return layer.rows()[1]

    found = on_workers(2, load)
    assert type(errors[1]) is ValueError and "worker1-rows.npy" in str(errors[1])
    assert type(errors[0]) is RuntimeError and "an error on worker 1: ValueError" in str(errors[0])
    np.testing.assert_array_equal(np.concatenate(found), NEW)


def test_one_worker_that_cannot_write_keeps_all_from_saving(tmp_path, monkeypatch):
    write = checkpoint._write_part

    def full(shards, folder, rank, *what):
        if rank == 1 and folder.name == "000002":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(shards, folder, rank, *what)

    monkeypatch.setattr(checkpoint, "_write_part", full)
    errors = {}

    def save(collectives):
        layer = layer_of(collectives, 2)
        layer.set_rows(IDS, OLD)
        layer.save_rows(str(tmp_path))
        layer.set_rows(IDS, NEW)
        with pytest.raises((OSError, RuntimeError)) as error:
            layer.save_rows(str(tmp_path))
        errors[collectives.rank] = error.value
        layer.load_rows(str(tmp_path))
        return layer.rows()[1]

    np.testing.assert_array_equal(np.concatenate(on_workers(2, save)), OLD)
    assert errors[1].errno == errno.ENOSPC
    assert "an error on worker 1: OSError: [Errno 28]" in str(errors[0])


def layer_of(collectives, width):
    layer = strategies.DistributedEmbedding(width)
    layer._collectives = collectives
    layer.build()
    return layer


class Killed(BaseException):
    """The process ends here."""


def test_a_save_that_is_killed_anywhere_leaves_what_was_saved_before(tmp_path, monkeypatch):
    layer = saved(tmp_path / "rows")
    layer.set_rows(IDS, NEW)
    left = [0]

    def counted(function):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    opened = counted(Path.open)

    def opening(*arguments, **options):
        file = opened(*arguments, **options)
        left[0] -= 1
        if left[0] < 0:  # the file is there by then, and empty
            file.close()
            raise Killed
        return file

    monkeypatch.setattr(Path, "open", opening)
    monkeypatch.setattr(Path, "mkdir", counted(Path.mkdir))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))
    monkeypatch.setattr(npy_stream._NpyFile, "append", counted(npy_stream._NpyFile.append))
    seen = []
    for steps in range(200):
        copy = tmp_path / f"copy{steps}"
        left[0] = 10**9
        shutil.copytree(tmp_path / "rows", copy)
        left[0] = steps
        try:
            layer.save_rows(str(copy))
            killed = False
        except Killed:
            killed = True
        left[0] = 10**9
        other = new_layer()
        other.load_rows(str(copy))
        seen.append(has(other, NEW))
        assert has(other, NEW) or has(other, OLD)
        other.set_rows(IDS, NEW)
        other.save_rows(str(copy))  # nothing that is left there is in the way
        if not killed:
            break
    assert seen[0] is False and seen[-1] is True and len(seen) > 20
    assert sorted(seen) == seen


def test_a_full_disk_is_said_so_and_leaves_what_was_saved_before(tmp_path):
    layer = saved(tmp_path)
    layer.set_rows(np.arange(10000), np.ones([10000, 2], np.float32))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large.*is intact. Free some space"):
            layer.save_rows(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000001", "latest"]
    other = new_layer()
    other.load_rows(str(tmp_path))
    assert has(other, OLD)
    layer.save_rows(str(tmp_path))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 KB, if one may be mounted here."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_full_or_read_only(small_disk):
    layer = saved(small_disk)
    layer.set_rows(np.arange(20000), np.ones([20000, 2], np.float32))
    with pytest.raises(OSError, match="No space left on device.*is intact. Free some space"):
        layer.save_rows(str(small_disk))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match="Read-only file system.*Use a directory"):
        layer.save_rows(str(small_disk))
    other = new_layer()
    other.load_rows(str(small_disk))
    assert has(other, OLD)


def test_files_are_made_with_the_users_umask(tmp_path):
    before = os.umask(0o077)
    try:
        saved(tmp_path / "rows")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in files_of(tmp_path / "rows")} == {0o600}


def model_of(layer):
    inputs = keras.Input([1], dtype="int64")
    return keras.Model(inputs, layer(inputs))


@pytest.mark.filterwarnings("ignore:Skipping nested container")  # Keras's, before its error
@pytest.mark.parametrize("suffix", [".weights.h5", pytest.param(".keras", marks=pytest.mark.slow)])
def test_a_damaged_file_of_keras_changes_no_row(tmp_path, suffix):
    layer = new_layer()
    path = tmp_path / f"model{suffix}"
    model = model_of(layer)
    layer.set_rows(IDS, OLD)
    (model.save if suffix == ".keras" else model.save_weights)(path)
    layer.set_rows(IDS, NEW)
    data = path.read_bytes()
    refused = 0
    for what, damaged in damages(data, len(data) // 12, 24):
        path.write_bytes(damaged)
        try:
            model.load_weights(path)
        except Exception:  # Keras's, HDF5's or ours
            refused += 1
        else:  # a byte that means nothing
            assert has(layer, OLD), what
        assert has(layer, NEW) or has(layer, OLD), what  # Keras may find the damage behind them
        layer.set_rows(IDS, NEW)
    assert refused > 10


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_a_value_that_changed_in_a_file_of_keras_is_seen(tmp_path):
    layer = new_layer()
    model = model_of(layer)
    layer.set_rows(IDS, OLD)
    model.save_weights(tmp_path / "model.weights.h5")
    data = (tmp_path / "model.weights.h5").read_bytes()
    at = data.index(OLD.tobytes())
    (tmp_path / "model.weights.h5").write_bytes(data[:at] + b"\1" + data[at + 1 :])
    with pytest.raises(ValueError, match="other values than were saved"):
        model.load_weights(tmp_path / "model.weights.h5")


def test_arrays_of_another_model_are_refused():
    layer, other = new_layer(), new_layer(width=3)
    layer.set_rows(IDS, OLD)
    other.set_rows(IDS, np.ones([4, 3], np.float32))
    arrays = dict(layer.snapshot_rows())
    wrong = [other.snapshot_rows(), {}, {"0/ids": IDS}, {**arrays, "1/ids": IDS},
             {**arrays, "0/rows": OLD[:2]}, {**arrays, "0/touches": IDS},
             {**arrays, "0/slot/momentum": OLD[:, :1]}, {**arrays, "0/else": OLD}]  # fmt: skip
    for each in wrong:
        with pytest.raises(ValueError, match="Restore a checkpoint of this|Create the layer with"):
            layer.restore_rows(each)
        assert has(layer, OLD)
    layer.restore_rows(arrays)


def test_the_manifest_is_json(tmp_path):
    saved(tmp_path)
    manifest = json.loads((tmp_path / "000001/worker0.json").read_text())
    names = {path.name for path in (tmp_path / "000001").glob("*.npy")}
    assert set(manifest["files"]) == names


@pytest.mark.parametrize("format", ["npy", "parquet"])
def test_of_rows_that_do_not_fit_none_is_imported(tmp_path, format):
    for width in (2, 3):
        layer = new_layer(width)
        layer.set_rows(IDS + width, np.ones([4, width], np.float32))
        layer.export_rows(str(tmp_path / str(width)), format=format)
    for path in (tmp_path / "3").iterdir():
        path.rename(tmp_path / "2" / path.name.replace("part-00000-of-00001", "z"))
    layer = new_layer()
    layer.set_rows(IDS, OLD)
    for path in (tmp_path / "2").iterdir():
        path.rename(path.with_name(path.name.replace("part-00000-of-00001", "a")))
    with pytest.raises(ValueError, match="ows (must have|of) width 2"):
        layer.import_rows(str(tmp_path / "2"))
    assert has(layer, OLD)
