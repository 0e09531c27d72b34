"""Files that two processes would write at once; the second one is told before it writes."""

import re
import subprocess
import textwrap

import pytest

from strategies.files import file_locks as file_claims
from strategies.files.file_locks import claim

CLAIMS = """
import sys
from strategies.files.file_locks import claim

class Writer:
    pass

writer = Writer()
print(claim(sys.argv[1], writer), flush=True)
sys.stdin.read()
"""


class Writer:
    pass


@pytest.fixture
def other(forked):
    """Starts another process that claims a path; it does so until its input ends."""

    def start(path):
        process = forked.popen([forked.python, "-c", CLAIMS, path], stdin=subprocess.PIPE)
        return process, process.stdout.readline().strip()

    return start


def test_a_path_is_claimed_by_one_process_until_it_ends(other, tmp_path):
    process, answer = other(tmp_path / "best.keras")
    assert answer == "True"
    writer = Writer()
    assert not claim(f"{tmp_path}/../{tmp_path.name}/best.keras", writer), "the same file"
    assert claim(f"{tmp_path}/another.keras", writer)
    process.stdin.close()
    process.wait()
    assert claim(f"{tmp_path}/best.keras", writer)
    assert other(tmp_path / "best.keras")[1] == "False"


def test_a_claim_ends_with_what_writes(other, tmp_path):
    path = f"{tmp_path}/log.csv"
    first, second = Writer(), Writer()
    assert claim(path, first) and claim(path, second) and claim(path, second)
    del first
    assert other(path)[1] == "False"
    del second
    assert other(path)[1] == "True"
    assert not any(str(tmp_path) in name for name in file_claims._claims)


def test_remote_paths_are_free():
    assert claim("gs://bucket/best.keras", Writer())


@pytest.mark.parametrize(
    ("module", "name", "attribute", "remedy"),
    [
        ("keras.src.callbacks", "OrbaxCheckpoint", "directory", "on_first_worker(callback, "),
        ("keras_tuner.src.engine", "SaveBestEpoch", "filepath", "own_path('tuner', strategy)"),
    ],
)
def test_what_else_writes_is_known(other, tmp_path, monkeypatch, module, name, attribute, remedy):
    path = str(tmp_path / "written")
    callback = type(name, (), {"__module__": module, attribute: path})()
    monkeypatch.setattr(file_claims, "callbacks_of_running_fit", lambda: [callback])
    process, _ = other(path)
    with pytest.raises(ValueError, match=re.escape(f"Received: {name} with {path!r}")) as raised:
        file_claims.check_sole_writer(in_step=False)
    assert remedy in str(raised.value)
    process.stdin.close()
    process.wait()
    file_claims.check_sole_writer(in_step=False)


@pytest.mark.parametrize(
    ("api", "mode", "name"),
    [
        ("keras", "", "ModelCheckpoint"),
        pytest.param("keras", "", "BackupAndRestore", marks=pytest.mark.slow),
        pytest.param("keras", "", "CSVLogger", marks=pytest.mark.slow),
        pytest.param("keras", "async", "ModelCheckpoint", marks=pytest.mark.slow),
        pytest.param("tf_keras", "", "CSVLogger", marks=pytest.mark.slow),
        pytest.param("tf_keras", "geo", "BackupAndRestore", marks=pytest.mark.slow),
    ],
)
def test_a_file_of_two_workers_is_an_error(forked, api, mode, name):
    code, output = forked.run(*cluster(mode), script(forked, api, mode, name))
    assert code == 1, output
    assert f"Received: {name} with '{forked.directory}/file.keras', which another process" in output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ModelCheckpoint", "BackupAndRestore"])
def test_tf_keras_asks_the_strategy_which_worker_writes(forked, name):
    code, output = forked.run(*cluster(""), script(forked, "tf_keras", "", name))
    assert code == 0, output


def cluster(mode):
    return "--workers", 2, "--ps", 1 if mode else 0


def script(job, api, mode, name):
    text = f"""
        import {api} as keras
        import numpy as np
        import strategies

        strategy = strategies.from_tf_config({f"mode={mode!r}" if mode else ""})
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        callback = keras.callbacks.{name}({str(job.directory / "file.keras")!r})
        model.fit(np.ones([8, 2]), np.ones([8, 1]), verbose=0, callbacks=callback)
        strategies.barrier(strategy)
    """
    return job.script(textwrap.dedent(text))
