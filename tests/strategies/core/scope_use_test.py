"""Scripts that start their tasks' training by themselves, and those that forget to."""

import json

import pytest

from tests.support.check_jobs import PROGRAMS
from tf_config.builder import free_ports

WARNING = "tf-config: warning: worker 0, worker 1 ran TensorFlow but did not connect to the other "
NO_SCOPE = "contextlib.nullcontext()"
TRAINING = """
import contextlib, os
os.environ["TF_USE_LEGACY_KERAS"] = "{legacy:d}"
import numpy as np
import {keras} as keras
import strategies
strategy = {strategy}
with {scope}:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones([8, 2]), np.ones([8, 1]), verbose=0)
print("trained")
"""
STOCK = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    variable = tf.Variable(1.0)

@tf.function
def step():
    return strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(variable))
    )

print("trained", float(step()))
"""


def run_horovod(job, program):
    """Runs a program in real processes: forks have no libraries for the launcher to see."""
    code, output = job.run("--workers", 2, PROGRAMS / program)
    assert code == 0, output
    assert all(f"[worker {worker}] passed" in output for worker in range(2)), output
    assert "tf-config: warning" not in output


@pytest.mark.slow
def test_a_plain_horovod_script_trains_in_step(job):
    run_horovod(job, "horovod_tape.py")


@pytest.mark.slow
def test_a_plain_horovod_script_of_tf_keras_trains_in_step(job):
    run_horovod(job, "horovod_callbacks.py")


@pytest.mark.slow
def test_a_strategy_without_its_scope_is_training_apart(job):
    text = TRAINING.format(
        keras="keras", legacy=False, strategy="strategies.from_tf_config()", scope=NO_SCOPE
    )
    code, output = job.run("--workers", 2, job.script(text))
    assert (code, output.count("trained\n")) == (0, 2), output
    assert WARNING in output
    said = output.index("MultiWorkerMirroredStrategy of 2 workers, which was never entered")
    assert said < output.index("trained\n"), "it is said when fit starts"
    assert "Received: fit(), " in output and "model.fit(np.ones" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    ["strategies.from_tf_config()", "strategies.from_tf_config() and None"],
    ids=["kept", "gone"],
)
def test_training_apart_is_said_where_nobody_launched_the_workers(job, strategy):
    text = TRAINING.format(keras="keras", legacy=False, strategy=strategy, scope=NO_SCOPE)
    script, cluster = job.script(text), {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    processes = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        job.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        processes.append(job.popen([job.python, str(script)]))
    for process in processes:
        code, output = job.finish(process, 150)
        assert code == 0 and "trained\n" in output, output
        assert "of 2 workers, which was never entered: each worker trains its own" in output
        assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
@pytest.mark.parametrize(
    ("strategy", "scope", "options"),
    [
        ("None", NO_SCOPE, ()),
        ("strategies.MirroredStrategy()", "strategy.scope()", ()),
        ("strategies.from_tf_config()", NO_SCOPE, ("--ps", 1)),
    ],
    ids=["none", "one of one process", "no scope, with servers"],
)
def test_no_strategy_of_several_workers_is_training_apart(job, keras, strategy, scope, options):
    text = TRAINING.format(keras=keras, legacy=keras == "tf_keras", strategy=strategy, scope=scope)
    code, output = job.run("--workers", 2, *options, job.script(text))
    assert (code, output.count("trained\n")) == (0, 2), output
    assert WARNING in output


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--ps", 1)], ids=["workers", "servers"])
def test_training_in_a_scope_is_no_reason_to_warn(job, options):
    text = TRAINING.format(
        keras="keras",
        legacy=False,
        strategy="strategies.from_tf_config()",
        scope="strategy.scope()",
    )
    code, output = job.run("--workers", 2, *options, job.script(text))
    assert (code, output.count("trained\n")) == (0, 2), output
    assert "tf-config: warning" not in output and "never entered" not in output


@pytest.mark.slow
def test_a_strategy_of_tensorflows_is_no_reason_to_warn(job):
    code, output = job.run("--workers", 2, job.script(STOCK))
    assert (code, output.count("trained 2.0\n")) == (0, 2), output
    assert "tf-config: warning" not in output
