"""A step fails on both workers, on one of them behind an exchange that the other never came to.

What comes next is of the same shape. They do not go on with sums of what does not belong together.
"""

import sys
import time

import tensorflow as tf

import strategies
from tests.support.assertions import raises

# With one thread, the exchange may begin after what fails.
tf.config.threading.set_inter_op_parallelism_threads(4)
workers = strategies.MultiWorkerMirroredStrategy().extended.collectives


def later(index):
    time.sleep(1.5)  # the other worker comes to its next step meanwhile
    return index


@tf.function
def step(value, before, behind):
    (total,) = workers.all_reduce([value * tf.gather(tf.ones_like(value), before)])
    # Without state, it is not put in order with the exchange.
    return total, tf.gather(value, tf.numpy_function(later, [behind], tf.int32, stateful=False))


zero, nine = tf.constant(0), tf.constant(9)
value = tf.fill([3], float(1 + workers.rank))
assert step(value, zero, zero)[0].numpy().tolist() == [3.0] * 3
with raises(tf.errors.InvalidArgumentError, "indices = 9"):
    step(value, nine, zero) if workers.rank else step(value, zero, nine)
again = {"function": lambda: step(value, zero, zero), "eager": lambda: workers.all_reduce([value])}
for _ in range(3):
    again[sys.argv[1]]()
