"""TensorFlow's cluster resolvers in place of TF_CONFIG."""

import pytest
import tensorflow as tf

import strategies
from strategies.core.resolver import config_of, resolver_of
from tf_config import ClusterConfigError, TFConfig

TWO = '{"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "%s", "index": 0}}'
Simple = tf.distribute.cluster_resolver.SimpleClusterResolver


def simple(jobs, **arguments):
    return Simple(tf.train.ClusterSpec(jobs), **arguments)


@pytest.mark.parametrize("task_type", ["chief", "worker", "evaluator"])
def test_it_says_what_tf_config_says(monkeypatch, task_type):
    monkeypatch.setenv("TF_CONFIG", TWO % task_type)
    found = config_of(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    expected = TFConfig.from_env()
    assert (found.cluster, found.task) == (expected.cluster, expected.task)
    assert config_of(resolver_of(expected)).cluster == expected.cluster


def test_the_task_may_be_known_only_after_the_cluster_was_asked_for():
    class Late(Simple):
        def cluster_spec(self):
            self.task_type, self.task_id = "worker", 1
            return super().cluster_spec()

    late = Late(tf.train.ClusterSpec({"worker": ["a:1", "b:1"]}))
    assert str(config_of(late).task) == "worker 1"


@pytest.mark.parametrize(
    ("resolver", "message"),
    [
        ("node1:2222", "Received: 'node1:2222'. Omit it to use TF_CONFIG"),
        (simple({"worker": ["a:1"]}), "task_type=None, task_id=None. Set both on the resolver"),
        (simple({"worker": ["a:1"]}, task_type="worker", task_id=1), "in the cluster: worker 0"),
        (simple({"worker": ["a:1", "a:1"]}, task_type="worker", task_id=0), "have its own address"),
        (simple({"worker": ["a:1"], "ps": ["b:1"]}, task_type="worker", task_id=0), "cannot use"),
    ],
)
def test_a_wrong_one_is_refused(resolver, message):
    with pytest.raises(ClusterConfigError, match=message):
        strategies.MultiWorkerMirroredStrategy(resolver)


@pytest.mark.parametrize(
    "resolver", [simple({}), simple({"worker": ["a:1"]}, task_type="worker", task_id=0)]
)
def test_it_wins_over_tf_config(monkeypatch, resolver):
    monkeypatch.setenv("TF_CONFIG", "wrong")
    strategy = strategies.MultiWorkerMirroredStrategy(resolver)
    assert strategy.num_replicas_in_sync == 1
    assert strategy.cluster_resolver is resolver
