"""from_tf_config: what either strategy takes, where it is used, and what is said elsewhere."""

import json

import pytest
import tensorflow as tf
from absl import logging

import strategies
from strategies import ParameterServerOptions, ReductionOptions, factory

SERVERS = {"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}, "task": {"type": "worker"}}
WORKERS = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker"}}
REDUCTION = ReductionOptions(compression="fp16")
GEO = ParameterServerOptions("geo", geo_steps=5)
TAKEN = {"num_replicas": None, "start_timeout": None}


@pytest.fixture
def resolve_communication(monkeypatch):
    """Returns which strategy is made, with what, and what is said."""
    said, made = [], []
    monkeypatch.setattr(logging, "warning", lambda text, *args: said.append(text % args))
    for name in ("MultiWorkerMirroredStrategy", "ParameterServerStrategy"):

        def fake(resolver, fake_name=name, **arguments):
            made.append((fake_name, arguments))

        fake.__name__ = name
        monkeypatch.setattr(factory, name, fake)

    def choose(config, *args, index=0, **arguments):
        monkeypatch.delenv("TF_CONFIG", raising=False)
        if config is not None:
            config = {**config, "task": {"type": "worker", "index": index}}
            monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        said.clear()
        strategies.from_tf_config(*args, **arguments)
        (name, taken) = made.pop()
        return name.removesuffix("Strategy"), taken, list(said)

    return choose


def test_each_strategy_gets_its_own_of_one_script(resolve_communication):
    script = {
        "options": [REDUCTION, GEO],
        "communication": "tensorflow",
        "num_replicas": 2,
        "start_timeout": 9,
    }
    both = {"num_replicas": 2, "start_timeout": 9}
    of_workers = {**both, "options": REDUCTION, "communication": "tensorflow"}
    for config in (None, WORKERS):
        name, taken, (said,) = resolve_communication(config, **script)
        assert (name, taken) == ("MultiWorkerMirrored", of_workers)
        assert said.startswith("MultiWorkerMirroredStrategy ignores ")
        assert "ParameterServerOptions(mode='geo'" in said
    name, taken, (said,) = resolve_communication(SERVERS, **script)
    assert (name, taken) == ("ParameterServer", {**both, "options": GEO})
    assert "ReductionOptions(" in said and "communication='tensorflow'" in said
    assert resolve_communication(SERVERS, index=1, **script)[2] == [], (
        "the first worker says it for all"
    )


@pytest.mark.parametrize(
    ("config", "arguments", "taken"),
    [
        (SERVERS, {"mode": "sync", "options": REDUCTION}, {"mode": "sync"}),
        (WORKERS, {"mode": "sync", "options": REDUCTION}, {"options": REDUCTION}),
        (None, {"geo_steps": 5, "mode": "geo"}, {}),
    ],
)
def test_single_settings_are_taken_as_well(resolve_communication, config, arguments, taken):
    _, found, said = resolve_communication(config, **arguments)
    assert found == {**TAKEN, **taken}
    assert len(said) == 1


@pytest.mark.parametrize("config", [None, WORKERS, SERVERS])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"plcement": "hash"}, TypeError, "Received: 'plcement'. Did you mean 'placement'?"),
        ({"mode": "asink"}, ValueError, "Received: 'asink'"),
        ({"communication": "pigeon"}, ValueError, "'pigeon'"),
        ({"communication_options": 3}, ValueError, "Received: 3"),
        ({"options": {"mode": "sync"}}, ValueError, "Received: {'mode': 'sync'}"),
        ({"options": [GEO, GEO]}, ValueError, "a list of one of each"),
        ({"options": GEO, "mode": "geo"}, ValueError, "Received: mode beside"),
    ],
)
def test_what_is_wrong_is_wrong_everywhere(
    resolve_communication, config, arguments, error, message
):
    with pytest.raises(error) as raised:
        resolve_communication(config, **arguments)
    assert message in str(raised.value)


def test_a_resolver_says_what_there_is(resolve_communication):
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(SERVERS["cluster"]), task_type="worker", task_id=0
    )
    assert resolve_communication(None, resolver, mode="sync")[:2] == (
        "ParameterServer",
        {**TAKEN, "mode": "sync"},
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"options": REDUCTION}, ValueError, "Received: ReductionOptions("),
        ({"options": GEO, "mode": "geo"}, ValueError, "an argument and in options. Received: mode"),
        ({"communication": "auto"}, TypeError, "ParameterServerStrategy must be cluster_resolver"),
    ],
)
def test_the_class_takes_its_own_alone(arguments, error, message):
    with pytest.raises(error, match="Received") as raised:
        strategies.ParameterServerStrategy(**arguments)
    assert message in str(raised.value)
