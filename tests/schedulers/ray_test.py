"""Ray Train's TensorflowTrainer, which sets TF_CONFIG for each of its workers."""

import importlib.util
import re

import pytest

TRAIN = """
import ray
from ray.train import ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def train():
    import keras
    import numpy as np

    import strategies

    strategy = strategies.from_tf_config()
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=[64, 4]).astype("float32")
    model.fit(x, x[:, :1], batch_size=16, epochs=2, verbose=0)
    digest = strategies.verify_equal(strategy, model.variables)
    rank = strategies.worker_rank(strategy)
    print("trained", rank, strategy.num_replicas_in_sync, digest, flush=True)


ray.init(num_cpus=2, include_dashboard=False)
TensorflowTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="not installed: ray (pip install 'ray[train]')"
)
def test_two_workers_of_ray_train_one_model(job):
    job.environ |= {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    process = job.popen([job.python, str(job.script(TRAIN))])
    code, output = job.finish(process, timeout=1200)
    assert code == 0 and "\ndone\n" in output, output
    # Ray may print a line of a worker twice.
    trained = {*re.findall(r"trained (\d) (\d) (\w+)", output)}
    assert sorted((rank, workers) for rank, workers, _ in trained) == [("0", "2"), ("1", "2")], (
        output
    )
    assert len({digest for _, _, digest in trained}) == 1
