"""The examples in all modes of the parameter servers, by one flag; and what a mode costs."""

import re
from pathlib import Path

import pytest

SERVERS = ("--workers", "2", "--ps", "1")
SLOW = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "click_model.py"
MODES = ["sync", "async", "half_async", "geo"]


def some(quick):
    """All modes; all but one are slow."""
    return [mode if mode == quick else pytest.param(mode, marks=SLOW) for mode in MODES]


@pytest.mark.parametrize("mode", some("async"))
def test_the_click_model_learns(run, click_logs, mode):
    small = ["--layers=64,32", "--table_rows=20001", "--batch_size=128"]
    output = run("ctr_dnn", f"--mode={mode}", *small, *click_logs, under=SERVERS)
    assert float(re.search(r"test AUC: ([\d.]+)", output)[1]) > 0.66


@pytest.mark.parametrize("mode", some("geo"))
def test_word_vectors_are_learned(run, mode):
    small = ["--epochs=3", "--least=20", "--words=integer,class"]
    output = run("word2vec", f"--mode={mode}", *small, under=SERVERS)
    found = re.search(r"loss: ([\d.]+) in the first epoch, ([\d.]+) in the last", output)
    first, last = map(float, found.groups())
    assert last < first and last < 0.44  # 0.45 is that of the share of positives, 1 in 6
    assert len(re.findall(r"near \w+: ", output)) == 2


@pytest.mark.slow
def test_each_mode_predicts_as_well_as_one_process(job, example, tmp_path):
    """To 0.003 of the AUC, on the same rows; other seeds move one process by less than 0.001."""
    data = example("criteo_data", "--directory=unused")
    best = data.write(tmp_path / "logs", "train", rows=400_000, files=4, seed=1)
    data.write(tmp_path / "logs", "test", rows=100_000, files=2, seed=1)
    logs = [f"--train={tmp_path}/logs/train-*", f"--test={tmp_path}/logs/test-*"]
    found = {"alone": _auc(job, ["--workers", "1"], logs)}
    for mode in MODES:
        found[mode] = _auc(job, SERVERS, [f"--mode={mode}", *logs])
    print(found, "best:", best)
    assert 0.76 < found["alone"] < best
    for mode in MODES:
        assert abs(found[mode] - found["alone"]) < 0.003, (mode, found)


def _auc(job, workers, given):
    code, output = job.run(*workers, SCRIPT, *given, timeout=900)
    assert code == 0, output
    return float(re.search(r"AUC on all rows: ([\d.]+)", output)[1])
