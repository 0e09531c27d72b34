"""The files of a parameter server's saves."""

import os
import subprocess
import sys
import tempfile
import time

import pytest

from strategies.ps.manifest import StateEntry
from strategies.ps.saved_state import SaveDirectory
from tf_config import Task

ENTRIES = [
    StateEntry("weight", "float32", (3, None)),
    StateEntry("map", "int64", key_dtype="int64"),
]


def saved(saves, text, entries=ENTRIES):
    with saves.new_save(entries) as state:
        (state.folder / "values").write_text(text)
        saves.publish(state)
    return state


def test_each_job_and_server_has_a_directory_that_others_cannot_guess():
    environ = {"KERAS_STRATEGIES_SECRET": "a" * 16, "TF_CONFIG": "{}"}
    other = {**environ, "KERAS_STRATEGIES_SECRET": "b" * 16}
    paths = {
        SaveDirectory.of(Task("ps", index), each).path
        for index in range(2)
        for each in (environ, other)
    }
    assert len(paths) == 4
    assert all("a" * 16 not in str(path) for path in paths)
    assert {str(path.parent) for path in paths} == {tempfile.gettempdir()}


def test_the_last_complete_save_is_kept(tmp_path):
    saves = SaveDirectory(tmp_path / "saves")
    saves.create()
    assert saves.path.stat().st_mode & 0o077 == 0
    assert saves.latest() is None
    first = saved(saves, "first")
    found = saves.latest()
    assert found.entries == ENTRIES and abs(found.time - first.time) < 1e-3
    assert found.dtypes == ["float32", "int64", "int64"]
    second = saved(saves, "second")
    assert saves.latest().folder == second.folder
    assert not first.folder.exists()


def test_an_interrupted_save_leaves_the_last_one(tmp_path):
    saves = SaveDirectory(tmp_path / "saves")
    saves.create()
    saved(saves, "first")
    with pytest.raises(OSError, match="full"), saves.new_save(ENTRIES) as state:
        (state.folder / "values").write_text("half")
        raise OSError("full")
    assert not state.folder.exists()
    # A process that is killed removes nothing.
    (saves.path / "000009").mkdir()
    assert (saves.latest().folder / "values").read_text() == "first"
    saved(saves, "second")
    assert sorted(path.name for path in saves.path.iterdir() if path.is_dir()) == ["000010"]


def test_a_damaged_description_is_an_error(tmp_path):
    saves = SaveDirectory(tmp_path / "saves")
    saves.create()
    state = saved(saves, "first")
    path = state.folder / "state.json"
    path.write_text(path.read_text().replace("float32", "float64"))
    with pytest.raises(ValueError, match="damaged"):
        saves.latest()


def test_the_states_of_workers_are_newer_than_a_save(tmp_path):
    saves = SaveDirectory(tmp_path / "saves")
    saves.create()
    assert saves.worker_states() == []
    saves.write_worker_states([1, 2])
    assert saves.worker_states() == [1, 2]


def test_directories_of_jobs_that_were_killed_are_removed_later(tmp_path):
    def old(name):
        path = tmp_path / name
        path.mkdir()
        (path / "lock").touch()
        os.utime(path, (time.time() - 4000,) * 2)
        return path

    abandoned, used = old("keras-strategies-1-ps-0"), old("keras-strategies-2-ps-0")
    others = tmp_path / "keras-strategies-files"
    others.mkdir()
    os.utime(others, (time.time() - 4000,) * 2)
    young = tmp_path / "keras-strategies-3-ps-0"
    young.mkdir()
    (young / "lock").touch()
    code = (
        "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, used / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    SaveDirectory(tmp_path / "keras-strategies-4-ps-0").create()
    assert not abandoned.exists()
    assert used.exists() and others.exists() and young.exists()
    process.communicate()
