"""Drawings of a job's variables; those of real jobs are checked in tests/distributed."""

import errno
import json
import os

import pytest

import strategies
from strategies.files.atomic_files import write_file
from tf_config.builder import free_ports


def test_a_full_disk_leaves_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "drawing.svg"
    write_file(path, b"previous")

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left .* Free some space"):
        strategies.draw_placement(path, strategies.MirroredStrategy())
    assert path.read_bytes() == b"previous"


def test_an_evaluator_draws_nothing(tmp_path, monkeypatch):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    task = {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    strategy = strategies.from_tf_config()
    with pytest.raises(ValueError, match="Received: a call by evaluator 0"):
        strategies.draw_placement(tmp_path / "drawing.svg", strategy)
    assert not list(tmp_path.iterdir())
