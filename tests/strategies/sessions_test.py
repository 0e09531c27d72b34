"""Sessions of TensorFlow 1, in which tf_keras can still train."""

PROGRAM = """
import tensorflow as tf

tf.compat.v1.disable_eager_execution()

import numpy as np
import strategies
import tf_keras

try:
    with strategies.MirroredStrategy(num_replicas=2).scope():
        model = tf_keras.Sequential([tf_keras.layers.InputLayer([3]), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0)
except NotImplementedError as error:
    print(error)
"""


def test_a_session_is_refused(forked):
    (forked.directory / "program.py").write_text(PROGRAM)
    process = forked.popen([forked.python, str(forked.directory / "program.py")])
    code, output = forked.finish(process, timeout=100)
    assert code == 0, output
    assert "Received: a model that runs in a session of TensorFlow 1" in output
