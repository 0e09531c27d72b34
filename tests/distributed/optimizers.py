"""Every elementwise optimizer: N workers at B rows each follow one process at N * B rows.

optimizers.py keras|tf_keras [replicas a worker] [fields of ReductionOptions as JSON]

What clips gradients is compared with stock tf.distribute.MirroredStrategy on as many replicas:
Keras 3 clips what each replica has before it is summed, tf_keras the sum, as one process does.
"""

import functools
import importlib
import json
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_close
from tests.support.checks import run_checks
from tests.support.keras_apis import optimizer_variables
from tests.support.reference import of_one_process
from tf_config import TFConfig

STEPS, ROWS, WIDTH, CLASSES = 24, 4, 6, 3

keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
options = strategies.ReductionOptions(**json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"))
optimizers = keras.optimizers
schedules = optimizers.schedules
config = TFConfig.from_env()
count = (1 if config is None else len(config.cluster.training_tasks)) * replicas
# As many logical CPUs as there are replicas, for the stock strategy.
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
strategy = strategies.from_tf_config(num_replicas=replicas, options=options)
assert strategy.num_replicas_in_sync == count


def quiet(name, *arguments, **options):
    """Returns what makes an optimizer that XLA leaves alone."""
    if keras.__name__ == "tf_keras":
        options["jit_compile"] = False
    return lambda: getattr(optimizers, name)(*arguments, **options)


def classifier():
    model = keras.Sequential([keras.layers.InputLayer([WIDTH]), keras.layers.Dense(8, "tanh")])
    model.add(keras.layers.Dense(CLASSES))
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def line():
    return keras.Sequential([keras.layers.InputLayer([WIDTH]), keras.layers.Dense(1)]), "mse"


def classes(rows):
    random = np.random.default_rng(1)
    x = random.normal(size=[rows, WIDTH]).astype("float32")
    return x, random.integers(0, CLASSES, size=[rows])


def whole_numbers(rows):
    random = np.random.default_rng(2)
    x = random.integers(-3, 4, size=[rows, WIDTH]).astype("float32")
    return x, (x @ np.arange(1, WIDTH + 1, dtype="float32"))[:, np.newaxis] / 8


def trained(make_model, make_optimizer, x, y, batch_size):
    model, loss = make_model()
    random = np.random.default_rng(3)
    # A multiple of 1/64, as Lion's steps are.
    model.set_weights([np.round(random.normal(size=w.shape) * 20) / 64 for w in model.weights])
    before = model.get_weights()
    model.compile(make_optimizer(), loss, jit_compile=False)
    history = model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0).history["loss"]
    moved = np.abs(model.get_weights()[0] - before[0]).max()
    assert moved > 1e-3, f"nothing was trained: {moved}"
    return model, history


def distance(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(np.abs(one - two).max() for one, two in pairs)


def follows(reference, make_optimizer, make_model=classifier, make_data=classes):
    """Compares the strategy with another one; returns the strategy's model."""
    batch_size = ROWS * strategy.num_replicas_in_sync
    arguments = (make_model, make_optimizer, *make_data(STEPS * batch_size), batch_size)

    def train_in_one_process():
        with reference().scope():
            one, losses = trained(*arguments)
        return one.get_weights(), losses, [v.numpy() for v in optimizer_variables(one.optimizer)]

    weights, losses, state = of_one_process(train_in_one_process)
    with strategy.scope():
        many, many_loss = trained(*arguments)
    assert int(np.asarray(many.optimizer.iterations)) == STEPS
    strategies.verify_equal(strategy, many.variables)
    strategies.verify_equal(strategy, optimizer_variables(many.optimizer))
    tolerance = {"atol": 1e-5, "rtol": 1e-5}
    assert_all_close(many.get_weights(), weights, **tolerance)
    assert_all_close(many_loss, losses, **tolerance)
    assert_all_close([v.numpy() for v in optimizer_variables(many.optimizer)], state, **tolerance)
    return many


def follows_one_process(name, *arguments, **options):
    follows(tf.distribute.get_strategy, quiet(name, *arguments, **options))


def momentum(**options):
    return quiet("SGD", 0.1, momentum=0.9, **options)


@functools.cache
def stock():
    """Its own collectives would take the numbers of ours, where these are TensorFlow's."""
    return tf.distribute.MirroredStrategy(
        [f"CPU:{number}" for number in range(count)], tf.distribute.ReductionToOneDevice()
    )


def follows_stock(**clipping):
    make_optimizer = momentum(**clipping)
    clipped = follows(stock, make_optimizer)
    batch_size = ROWS * count
    plain, alone = (
        trained(classifier, make, *classes(STEPS * batch_size), batch_size)[0]
        for make in (momentum(), make_optimizer)
    )
    assert distance(clipped, plain) > 1e-2, "nothing was clipped"
    as_one_process = count == 1 or keras.__name__ == "tf_keras"
    assert (distance(clipped, alone) < 1e-5) == as_one_process


def check_sgd():
    follows_one_process("SGD", 0.1)


def check_momentum():
    follows_one_process("SGD", 0.1, momentum=0.9)


def check_nesterov():
    follows_one_process("SGD", 0.1, momentum=0.9, nesterov=True)


def check_sgd_with_weight_decay():
    follows_one_process("SGD", 0.1, weight_decay=0.05)


def check_adam():
    follows_one_process("Adam", 0.01)


def check_amsgrad():
    follows_one_process("Adam", 0.01, amsgrad=True)


def check_adamw():
    follows_one_process("AdamW", 0.01, weight_decay=0.1)


def check_rmsprop():
    follows_one_process("RMSprop", 0.01)


def check_rmsprop_with_momentum():
    follows_one_process("RMSprop", 0.01, momentum=0.9)


def check_centered_rmsprop():
    follows_one_process("RMSprop", 0.01, momentum=0.5, centered=True)


def check_adagrad():
    follows_one_process("Adagrad", 0.1)


def check_adadelta():
    follows_one_process("Adadelta", 1.0)


def check_adamax():
    follows_one_process("Adamax", 0.01)


def check_nadam():
    follows_one_process("Nadam", 0.01)


def check_ftrl():
    follows_one_process("Ftrl", 0.1, l1_regularization_strength=0.001)


def check_lion():
    """It takes the sign alone, so where a sum of gradients is near 0 its rounding decides on a
    whole step. Whole numbers, and weights in steps of 1/64, are summed without rounding."""
    follows(tf.distribute.get_strategy, quiet("Lion", 2.0**-6), line, whole_numbers)


def check_exponential_decay():
    follows(
        tf.distribute.get_strategy,
        lambda: quiet("SGD", schedules.ExponentialDecay(0.2, 8, 0.5), momentum=0.5)(),
    )


def check_cosine_decay():
    rate = {"warmup_target": 0.02, "warmup_steps": 6}
    follows(
        tf.distribute.get_strategy,
        lambda: quiet("Adam", schedules.CosineDecay(0.001, 10, **rate))(),
    )


def check_averages():
    follows_one_process("Adam", 0.01, use_ema=True, ema_momentum=0.9)


def check_averages_that_overwrite():
    average = {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 5}
    follows_one_process("SGD", 0.1, momentum=0.9, **average)


def check_clipnorm():
    follows_stock(clipnorm=0.05)


def check_clipvalue():
    follows_stock(clipvalue=0.01)


def check_global_clipnorm():
    follows_stock(global_clipnorm=0.05)


if __name__ == "__main__":
    run_checks(globals())
