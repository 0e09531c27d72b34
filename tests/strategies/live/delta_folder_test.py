"""Folders of deltas: what they contain, and that no damaged one is read."""

import json
import shutil

import numpy as np
import pytest

from strategies.embedding.checkpoint import npy_stream
from strategies.embedding.checkpoint.part_files import part_files
from strategies.files.atomic_files import read_json, write_json
from strategies.live import delta_folder
from strategies.live.contents import Contents, ServedRows, ServedVariable
from strategies.live.delta_folder import Delta

CONTENTS = Contents(
    (ServedRows("tables/rows_users", 2), ServedRows("tables/rows_items", 1)),
    (ServedVariable("kernel", (2, 3), "float32"), ServedVariable("scale", (), "bfloat16")),
)
VALUES = [np.ones([2, 3], np.float32), np.array(2, CONTENTS.variables[1].numpy_dtype)]
DELTA = Delta(77, 1, CONTENTS.to_text())


def write(directory, delta=DELTA, workers=2):
    """Publishes a delta: ids 1 and 2 of users on two workers, and the items that are left."""
    folder = delta_folder.unpublished(directory, delta.number)
    folder.mkdir(parents=True)
    for rank in range(workers):
        with part_files(folder, rank) as part:
            with part.of_table(0) as files:
                files.append({"ids": np.array([rank + 1]), "rows": np.float32([[rank, 5.0]])})
                files.append({"removed": np.array([rank + 10])})
            if rank == 0:  # the other worker has no part of this table
                with part.of_table(1) as files:
                    ids = np.array([3], np.int64)
                    files.append({"ids": ids, "rows": np.float32([[9.0]]), "present_ids": ids})
    delta_folder.write_variables(folder, VALUES)
    return delta_folder.publish(folder, delta, workers)


def test_what_is_read_are_the_inputs_of_the_update(tmp_path):
    inputs = delta_folder.read(write(tmp_path), DELTA)
    specs = CONTENTS.specs()
    assert set(inputs) == set(specs)
    for name, spec in specs.items():
        assert spec.shape.is_compatible_with(inputs[name].shape), name
        assert spec.dtype.as_numpy_dtype == inputs[name].dtype, name
    assert (int(inputs["chain"]), int(inputs["number"])) == (77, 1)
    np.testing.assert_array_equal(inputs["table0_ids"], [1, 2])
    np.testing.assert_array_equal(inputs["table0_rows"], [[0, 5], [1, 5]])
    np.testing.assert_array_equal(inputs["table0_removed"], [10, 11])
    assert not inputs["table0_retains"]
    assert not len(inputs["table0_present"])
    np.testing.assert_array_equal(inputs["table1_ids"], [3])
    assert inputs["table1_retains"]
    np.testing.assert_array_equal(inputs["table1_present"], [3])
    np.testing.assert_array_equal(inputs["variable0"], VALUES[0])
    assert float(inputs["variable1"]) == 2.0


def test_numpy_and_json_read_a_folder(tmp_path):
    folder = write(tmp_path)
    assert folder.name == "000001"
    header = json.loads((folder / "delta.json").read_text())
    assert (header["chain"], header["number"], header["follows"]) == (77, 1, 0)
    assert np.load(folder / "table0-worker1-removed.npy").tolist() == [11]
    with np.load(folder / "variables.npz") as file:
        assert sorted(file) == ["variable0", "variable1"]


def test_only_published_folders_count(tmp_path):
    assert delta_folder.newest(tmp_path / "none") is None
    write(tmp_path)
    second = DELTA._replace(number=2)
    write(tmp_path, second)
    delta_folder.unpublished(tmp_path, 3).mkdir()
    (tmp_path / "notes").mkdir()
    assert [number for number, _ in delta_folder.folders(tmp_path)] == [1, 2]
    assert delta_folder.newest(tmp_path) == second


FILES = [
    "table0-worker0-ids.npy",
    "table0-worker0-rows.npy",
    "table0-worker1-removed.npy",
    "table1-worker0-present_ids.npy",
    "worker0.json",
    "worker1.json",
    "variables.npz",
    "delta.json",
]


def missing(path):
    path.unlink()


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1])


def longer(path):
    path.write_bytes(path.read_bytes() + b"0")


def changed(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [missing, truncated, longer, changed, empty])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_refused(tmp_path, file, damage):
    folder = write(tmp_path)
    damage(folder / file)
    with pytest.raises(ValueError, match="must be complete and unchanged.*Nothing of it was"):
        delta_folder.read(folder, DELTA)


def test_every_byte_counts(tmp_path):
    folder = write(tmp_path)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for position in range(0, len(data), 7):
            path.write_bytes(data[:position] + bytes([data[position] ^ 16]) + data[position + 1 :])
            with pytest.raises(ValueError, match="Nothing of it was applied"):
                delta_folder.read(folder, DELTA)
        path.write_bytes(data)
    delta_folder.read(folder, DELTA)


def test_parts_of_two_deltas_are_not_mixed(tmp_path):
    folder = write(tmp_path)
    other = write(tmp_path / "other", DELTA._replace(number=2))
    before = np.load(other / "table0-worker1-ids.npy")
    np.save(other / "table0-worker1-ids.npy", before + 1)
    manifest = read_json(other / "worker1.json")
    changed_file = other / "table0-worker1-ids.npy"
    manifest["files"][changed_file.name] = [
        changed_file.stat().st_size, npy_stream.checksum(changed_file)
    ]  # fmt: skip
    write_json(other / "worker1.json", manifest)
    for file in other.glob("*worker1*"):
        shutil.copy(file, folder)
    with pytest.raises(ValueError, match=r"worker1.json with other bytes"):
        delta_folder.read(folder, DELTA)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (DELTA._replace(chain=78), "must be of the same export as the SavedModel"),
        (DELTA._replace(number=2), "must contain the delta of this number. Received: number 1"),
        (DELTA._replace(contents="{}"), "must have the tables and variables of the SavedModel"),
    ],
)
def test_another_delta_is_refused(tmp_path, expected, message):
    with pytest.raises(ValueError, match=message):
        delta_folder.read(write(tmp_path), expected)


def test_a_later_format_is_refused(tmp_path):
    folder = write(tmp_path)
    header = read_json(folder / "delta.json")
    write_json(folder / "delta.json", {**header, "format": 2})
    with pytest.raises(ValueError, match="format 2, where this version reads 1"):
        delta_folder.read(folder, DELTA)
