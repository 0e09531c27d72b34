import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tf_config import Address, ClusterConfigError, ClusterSpec, Task, TFConfig
from tf_config.cli import main

TWO = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}'


def config(cluster, task=None, **others):
    task = {"type": "worker", "index": 0} if task is None else task
    return json.dumps({"cluster": cluster, "task": task, **others})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a JSON object. Received: ''. Unset it"),
        ("  ", "must be a JSON object"),
        ("{'cluster': {}}", "JSON requires double quotes"),
        ("{", "which is not JSON"),
        ("[" * 100_000, "which is not JSON"),
        ("9" * 5000, "which is not JSON"),
        ("[1]", r"must be a JSON object. Received: \[1\]"),
        ("null", "must be a JSON object. Received: None"),
        ('{"cluster": {"worker": ["a:1"]}, "cluster": {}}', "'cluster' twice"),
        ("{}", "'cluster' must map job names to addresses. Received: None"),
        (config({}), "'cluster' must map job names to addresses. Received: {}"),
        (config(["a:1"]), "'cluster' must map job names to addresses"),
        (config({"worker": []}), "at least one task that trains. Received: no task"),
        (config({"worker": "a:1"}), "A job must be a list of addresses"),
        (config({"worker": {"x": "a:1"}}), "index must be an integer >= 0. Received: 'x'"),
        (config({"worker": {"1": "a:1", "01": "b:1"}}), "two for worker 1"),
        (config({"worker": ["a:1"]}, task=[]), "'task' must have the type and the index"),
        ('{"cluster": {"worker": ["a:1"]}}', "'task' must have the type and the index"),
        (config({"worker": ["a:1"]}, {"type": "worker"}), "'task' must have the type"),
        (config({"worker": ["a:1"]}, {"type": "wroker", "index": 0}), "one of chief, worker, ps"),
        (config({"worker": ["a:1"]}, {"type": "master", "index": 0}), "the master 'chief'"),
        (config({"wroker": ["a:1"]}), "one of chief, worker, ps, evaluator. Received: 'wroker'"),
        (config({"worker": ["a:1"]}, {"type": "worker", "index": 1}), "in the cluster: worker 0"),
        (config({"worker": ["a:1"]}, {"type": "worker", "index": -1}), "integer >= 0"),
        (config({"worker": ["a:1"]}, {"type": "worker", "index": True}), "integer >= 0"),
        (config({"worker": ["a:1"]}, {"type": "worker", "index": 0.0}), "integer >= 0"),
        (
            config({"worker": ["a:1"]}, {"type": "ps", "index": 0}),
            "of this type in the cluster: none",
        ),
        (config({"worker": ["a:1", "a:1"]}), "have its own address. Received: a:1 for worker 0"),
        (config({"worker": ["localhost:1", "127.0.0.1:1"]}), "must have its own address"),
        (config({"worker": ["a:1"], "ps": ["A:1"]}), "worker 0 and ps 0"),
        (config({"worker": ["a"]}), "has no port"),
        (config({"worker": ["a:70000"]}), "A port must be a number from 1 to 65535"),
        (
            config({"worker": ["a:1"], "chief": ["b:1", "c:1"]}),
            "cannot have a chief other than chief 0",
        ),
        (
            config({"worker": ["a:1"], "chief": {"1": "c:1"}}),
            "cannot have a chief other than chief 0",
        ),
        (
            config({"worker": ["a:1"], "evaluator": ["b:1"]}),
            "cannot be part of the training",
        ),
        (config({"ps": ["a:1"]}, {"type": "ps", "index": 0}), "at least one task that trains"),
        (config({"worker": ["a:1"]}, environment=1), "'environment' must be a string"),
        (config({"worker": ["a:1"]}, rpc_layer=""), "'rpc_layer' must be a string"),
    ],
)
def test_a_wrong_tf_config_is_refused_in_one_line(text, message, monkeypatch, capsys):
    with pytest.raises(ClusterConfigError, match=message) as error:
        TFConfig.from_json(text)
    assert "\n" not in str(error.value)
    assert "Received: " in str(error.value)
    monkeypatch.setenv("TF_CONFIG", text)
    assert main(["check"]) == 2
    assert capsys.readouterr() == ("", f"tf-config: error: {error.value}\n")


def test_what_tensorflow_reads_is_read_and_written_back():
    text = (
        '{"cluster": {"chief": ["a:1"], "worker": {"1": "b:2", "3": "c:3"}, "ps": ["d:4"]}, '
        '"task": {"type": "worker", "index": 3}, "environment": "cloud", "rpc_layer": "grpc"}'
    )
    read = TFConfig.from_json(text)
    assert read.to_json() == text
    assert read.address == Address("c", 3)
    assert read.cluster.training_tasks == (Task("chief", 0), Task("worker", 1), Task("worker", 3))


def test_a_string_index_is_written_as_a_number():
    read = TFConfig.from_json(TWO.replace('"index": 0', '"index": "1"'))
    assert json.loads(read.to_json())["task"] == {"type": "worker", "index": 1}


def test_jobs_may_come_in_any_order():
    spec = ClusterSpec.from_dict({"ps": ["p:1"], "worker": {"1": "b:1", "0": "a:1"}})
    assert spec.to_dict() == {"worker": ["a:1", "b:1"], "ps": ["p:1"]}


def test_an_evaluator_stands_outside_the_cluster():
    read = TFConfig.from_json(config({"worker": ["a:1"]}, {"type": "evaluator", "index": 0}))
    assert read.address is None
    assert TFConfig.from_json(read.to_json()) == read


def test_other_keys_are_left_to_other_readers():
    assert TFConfig.from_json(config({"worker": ["a:1"]}, job={"scale_tier": "BASIC"}))


def test_tensorflow_reads_the_same_cluster_from_what_is_written(monkeypatch):
    resolvers = pytest.importorskip("tensorflow").distribute.cluster_resolver
    for text in (TWO, config({"worker": {"1": "b:2"}}, {"type": "worker", "index": "1"})):
        written = TFConfig.from_json(text)
        monkeypatch.setenv("TF_CONFIG", written.to_json())
        resolver = resolvers.TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id) == (written.task.type, written.task.index)
        assert resolver.cluster_spec().as_dict() == written.cluster.to_dict()


def test_unset_is_no_configuration_and_empty_a_wrong_one():
    assert TFConfig.from_env({}) is None
    assert TFConfig.from_env({"TF_CONFIG": TWO}) == TFConfig.from_json(TWO)
    with pytest.raises(ClusterConfigError):
        TFConfig.from_env({"TF_CONFIG": ""})


def test_equal_configurations_are_equal_and_hashable_and_cannot_be_changed():
    one, other = TFConfig.from_json(TWO), TFConfig.from_json(TWO)
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(AttributeError):
        one.task = Task("worker", 1)
    with pytest.raises(TypeError):
        one.cluster.addresses[Task("worker", 2)] = Address("c", 3)


@pytest.mark.parametrize(
    ("text", "task"),
    [("worker:1", Task("worker", 1)), ("worker 1", Task("worker", 1)), ("chief", Task("chief", 0))],
)
def test_a_task_is_read_from_its_name(text, task):
    assert Task.parse(text) == task


@pytest.mark.parametrize("text", ["", "worker:", "worker:x", "1", "worker:1:2", "worker", "ps"])
def test_a_wrong_name_of_a_task_is_refused(text):
    with pytest.raises(ClusterConfigError):
        Task.parse(text)


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_json = st.recursive(
    _scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
# Nearly right values find more than arbitrary ones.
_addresses = st.one_of(
    st.builds("{}:{}".format, st.sampled_from("abc"), st.integers(-1, 70_000)), _scalars
)
_members = st.lists(_addresses) | st.dictionaries(st.text("0123x"), _addresses) | _scalars
_types = st.sampled_from(["chief", "worker", "ps", "evaluator", "master"]) | st.text()
_nearly = st.fixed_dictionaries(
    {},
    optional={
        "cluster": st.dictionaries(_types, _members) | _scalars,
        "task": st.fixed_dictionaries({}, optional={"type": _types, "index": _scalars}) | _scalars,
        "environment": _scalars,
        "rpc_layer": _scalars,
    },
)


@given(st.text() | _json.map(json.dumps) | _nearly.map(json.dumps))
@example('{"cluster": {"worker": {"\\ud800": 1}}, "task": {}}')
@example('{"task": NaN}')
def test_any_text_is_a_valid_configuration_or_a_configuration_error(text):
    try:
        read = TFConfig.from_json(text)
    except ClusterConfigError as error:
        assert "\n" not in str(error)
        str(error).encode()
    else:
        assert TFConfig.from_json(read.to_json()) == read
