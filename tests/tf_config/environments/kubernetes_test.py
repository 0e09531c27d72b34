"""The environment of pods: variables in, TF_CONFIG out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_config import ClusterConfigError, Task
from tf_config.environments import resolve
from tf_config.environments.kubernetes import format_tasks, parse_tasks
from tf_config.roles import Roles

POD = {
    "KERAS_STRATEGIES_SERVICE": "train",
    "KERAS_STRATEGIES_TASKS": "chief=1,worker=2,ps=1,evaluator=1",
    "KERAS_STRATEGIES_TASK_TYPE": "worker",
    "HOSTNAME": "train-worker-1",
    "JOB_COMPLETION_INDEX": "1",
}
PLAIN = {
    "KERAS_STRATEGIES_SERVICE": "train.default.svc.cluster.local",
    "KERAS_STRATEGIES_TASKS": "worker=3",
    "KERAS_STRATEGIES_PORT": "3333",
    "HOSTNAME": "train-2",
}


def test_a_pod_of_an_indexed_job():
    resolved = resolve(POD)
    assert resolved.origin == "kubernetes"
    assert resolved.config.task == Task("worker", 1)
    assert resolved.config.cluster.to_dict() == {
        "chief": ["train-chief-0.train:2222"],
        "worker": ["train-worker-0.train:2222", "train-worker-1.train:2222"],
        "ps": ["train-ps-0.train:2222"],
    }
    assert dict(resolved.variables) == POD


def test_a_pod_of_a_stateful_set_of_workers_alone():
    config = resolve(PLAIN).config
    assert config.task == Task("worker", 2)
    assert str(config.address) == "train-2.train.default.svc.cluster.local:3333"
    assert len(config.cluster.addresses) == 3


def test_a_stateful_set_with_its_type_in_the_name_knows_the_other_sets():
    config = resolve({**POD, "JOB_COMPLETION_INDEX": ""}).config
    assert config == resolve(POD).config


def test_a_hostname_that_is_the_full_name():
    full = {"HOSTNAME": "train-worker-1.train.default.svc.cluster.local"}
    assert resolve({**POD, **full}).config == resolve(POD).config


def test_an_evaluator_is_not_in_its_cluster():
    changes = {
        "KERAS_STRATEGIES_TASK_TYPE": "evaluator",
        "HOSTNAME": "train-evaluator-0",
        "JOB_COMPLETION_INDEX": "0",
    }
    config = resolve({**POD, **changes}).config
    assert config.task == Task("evaluator", 0)
    assert config.address is None
    assert config.cluster == resolve(POD).config.cluster


ROLES = st.builds(
    Roles, workers=st.integers(1, 12), ps=st.integers(0, 12), chief=st.booleans(),
    evaluator=st.booleans(),
)  # fmt: skip


@given(ROLES, st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True))
def test_all_pods_compute_one_cluster_whatever_the_name(roles, name):
    configs = []
    for task in roles.tasks:
        environ = {
            "KERAS_STRATEGIES_SERVICE": "s",
            "KERAS_STRATEGIES_TASKS": format_tasks(roles),
            "KERAS_STRATEGIES_TASK_TYPE": task.type,
            "HOSTNAME": f"{name}-{task.type}-{task.index}",
        }
        config = resolve(environ).config
        assert config.task == task
        if task.type != "evaluator":
            assert config.address.host == f"{environ['HOSTNAME']}.s"
        configs.append(config)
    assert {config.cluster for config in configs} == {configs[0].cluster}


@given(ROLES)
def test_tasks_are_read_as_they_were_written(roles):
    assert parse_tasks(format_tasks(roles)) == roles


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"KERAS_STRATEGIES_SERVICE": "a b"}, "must be the DNS name of a headless Service"),
        ({"KERAS_STRATEGIES_SERVICE": "train:2222"}, "must be the DNS name of a headless Service"),
        ({"KERAS_STRATEGIES_TASKS": ""}, "set KERAS_STRATEGIES_TASKS. Received: it is not set"),
        ({"KERAS_STRATEGIES_TASKS": "2"}, "the number of tasks of each type, once"),
        ({"KERAS_STRATEGIES_TASKS": "worker"}, "the number of tasks of each type, once"),
        ({"KERAS_STRATEGIES_TASKS": "worker=2,"}, "the number of tasks of each type, once"),
        ({"KERAS_STRATEGIES_TASKS": "worker=-2"}, "the number of tasks of each type, once"),
        ({"KERAS_STRATEGIES_TASKS": "worker=2,worker=2"}, "the number of tasks of each type, once"),
        ({"KERAS_STRATEGIES_TASKS": "worker=2,boss=1"}, "the number of tasks of each type, once"),
        ({"KERAS_STRATEGIES_TASKS": "worker=9999999"}, "the number of tasks of each type, once"),
        ({"KERAS_STRATEGIES_TASKS": "worker=2,chief=2"}, "more than one chief or more than"),
        ({"KERAS_STRATEGIES_TASKS": "worker=2,evaluator=2"}, "more than one chief or more than"),
        ({"KERAS_STRATEGIES_TASKS": "ps=1"}, "at least one task that trains"),
        ({"KERAS_STRATEGIES_TASKS": "worker=1"}, "Received: worker 1 and 'worker=1'"),
        ({"KERAS_STRATEGIES_TASKS": "chief=1,ps=2"}, "Received: worker 1 and 'chief=1,ps=2'"),
        ({"KERAS_STRATEGIES_TASK_TYPE": "boss"}, "A task's type must be one of"),
        ({"KERAS_STRATEGIES_TASK_TYPE": "ps"}, "Received: ps 1"),
        ({"KERAS_STRATEGIES_PORT": "x"}, "KERAS_STRATEGIES_PORT must be an integer >= 0"),
        ({"KERAS_STRATEGIES_PORT": "tcp://10.0.0.1:80"}, "PORT must be an integer >= 0"),
        ({"KERAS_STRATEGIES_PORT": "0"}, "A port must be a number from 1 to 65535"),
        ({"KERAS_STRATEGIES_PORT": "70000"}, "A port must be a number from 1 to 65535"),
        ({"HOSTNAME": ""}, "must set HOSTNAME. Received: it is not set"),
        ({"HOSTNAME": "train"}, "A pod's HOSTNAME must end with its index. Received: 'train'"),
        ({"HOSTNAME": "train-worker-01"}, "A pod's HOSTNAME must end with its index"),
        ({"HOSTNAME": "train-worker-0"}, "Received: '1' and 'train-worker-0'"),
        ({"HOSTNAME": "train-1"}, "must end with its task's type and index"),
        ({"HOSTNAME": "homeworker-1"}, "must end with its task's type and index"),
        ({"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX must be an integer >= 0"),
    ],
)
def test_wrong_variables(changes, message):
    with pytest.raises(ClusterConfigError) as error:
        resolve({**POD, **changes})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "config",
    [
        {
            "cluster": {"worker": ["job-worker-0.team.svc:2222", "job-worker-1.team.svc:2222"]},
            "task": {"type": "worker", "index": 0},
            "environment": "cloud",
        },
        # Its dynamic workers: each knows itself and the servers.
        {
            "cluster": {"ps": ["job-ps-0.team.svc:2222"], "worker": {"1": "job-worker-1:2222"}},
            "task": {"type": "worker", "index": 1},
        },
    ],
)  # fmt: skip
def test_kubeflows_operator_comes_first_and_passes_through(config):
    resolved = resolve({**POD, "TF_CONFIG": json.dumps(config)})
    assert resolved.origin == "tf_config"
    given = json.loads(resolved.config.to_json())
    assert given == config
