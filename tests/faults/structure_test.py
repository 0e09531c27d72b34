"""Models that differ between workers are found when they are made, with both sides named."""

import pytest

SCRIPT = """
import os, json
import keras, numpy as np, strategies
strategy = strategies.from_tf_config()
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
with strategy.scope():
    model = keras.Sequential([keras.Input([2]), {layers}])
    model.compile("sgd", "mse")
print("trains", flush=True)
model.fit(np.ones([8, 2]), np.ones([8, 1]), verbose=0)
print("trained", flush=True)
"""
WIDTH = "keras.layers.Dense(4 + rank)", "float32 (2, 4)", "float32 (2, 5)"
LAYERS = (
    "*[keras.layers.Dense(2) for _ in range(1 + rank)]",
    "creation of a variable: int64 ()",
    "creation of a variable: float32 (2, 2)",
)
DTYPE = (
    "keras.layers.Dense(2, dtype=['float32', 'float64'][rank])",
    "float32 (2, 2)",
    "float64 (2, 2)",
)


@pytest.mark.parametrize(
    ("layers", "first", "second"),
    [
        WIDTH,
        pytest.param(*LAYERS, marks=pytest.mark.slow),
        pytest.param(*DTYPE, marks=pytest.mark.slow),
    ],
    ids=["width", "layers", "dtype"],
)
def test_models_that_differ_are_found_before_a_step(forked, layers, first, second):
    code, output = forked.run(
        "--workers", 2, forked.script(SCRIPT.format(layers=layers)), timeout=60
    )
    assert code == 1, output
    assert "trained" not in output
    (message,) = {line.partition("Received: ")[2] for line in output.splitlines()
                  if "ValueError: All workers must make the same calls" in line}  # fmt: skip
    assert first in message.partition("; worker 1: ")[0]
    assert second in message.partition("; worker 1: ")[2]
    forked.assert_nothing_left()
