"""The process of a parameter server."""

import json

import tensorflow as tf

from strategies import serve
from tf_config.builder import free_ports


def test_a_server_takes_no_gpu(monkeypatch, capsys):
    """TensorFlow's server has its own configuration: `tf.config` does not change it."""
    given = []

    def start(*args, config=None, **kwargs):
        given.append(config)
        raise tf.errors.UnknownError(None, None, "not here")

    worker, server = (f"127.0.0.1:{port}" for port in free_ports(2))
    cluster = {"worker": [worker], "ps": [server]}
    task = {"type": "ps", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    monkeypatch.setattr(tf.distribute, "Server", start)
    assert serve.main() == 1
    assert "where TensorFlow's server cannot start: not here" in capsys.readouterr().err
    assert [config.device_count["GPU"] for config in given] == [0]
    assert "GPU" in given[0].device_count
