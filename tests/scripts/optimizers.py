"""Every elementwise optimizer: N workers at B rows each follow one process at N * B rows.

optimizers.py keras|tf_keras [replicas a worker] [fields of ReductionOptions as JSON] [name ...]

What clips gradients is compared with stock tf.distribute.MirroredStrategy on as many replicas:
Keras 3 clips what each replica has before it is summed, tf_keras the sum, as one process does.
"""

import importlib
import json
import sys

import numpy as np
import tensorflow as tf

import strategies
from tf_config import TFConfig

STEPS, ROWS, WIDTH, CLASSES = 24, 4, 6, 3

keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
options = strategies.ReductionOptions(**json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"))
chosen = sys.argv[4:]
optimizers = keras.optimizers
schedules = optimizers.schedules


def quiet(name, *arguments, **options):
    """Returns what makes an optimizer that XLA leaves alone."""
    if keras.__name__ == "tf_keras":
        options["jit_compile"] = False
    return lambda: getattr(optimizers, name)(*arguments, **options)


OPTIMIZERS = {
    "SGD": quiet("SGD", 0.1),
    "momentum": quiet("SGD", 0.1, momentum=0.9),
    "Nesterov": quiet("SGD", 0.1, momentum=0.9, nesterov=True),
    "SGD, weight decay": quiet("SGD", 0.1, weight_decay=0.05),
    "Adam": quiet("Adam", 0.01),
    "AMSGrad": quiet("Adam", 0.01, amsgrad=True),
    "AdamW": quiet("AdamW", 0.01, weight_decay=0.1),
    "RMSprop": quiet("RMSprop", 0.01),
    "RMSprop, momentum": quiet("RMSprop", 0.01, momentum=0.9),
    "RMSprop, centered": quiet("RMSprop", 0.01, momentum=0.5, centered=True),
    "Adagrad": quiet("Adagrad", 0.1),
    "Adadelta": quiet("Adadelta", 1.0),
    "Adamax": quiet("Adamax", 0.01),
    "Nadam": quiet("Nadam", 0.01),
    "Ftrl": quiet("Ftrl", 0.1, l1_regularization_strength=0.001),
    "Lion": quiet("Lion", 2.0**-6),
    "ExponentialDecay": lambda: quiet(
        "SGD", schedules.ExponentialDecay(0.2, 8, 0.5), momentum=0.5
    )(),
    "CosineDecay": lambda: quiet(
        "Adam", schedules.CosineDecay(0.001, 10, warmup_target=0.02, warmup_steps=6)
    )(),
    "averages": quiet("Adam", 0.01, use_ema=True, ema_momentum=0.9),
    "averages, overwritten": quiet(
        "SGD", 0.1, momentum=0.9, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=5
    ),
}
CLIPPED = {
    "clipnorm": quiet("SGD", 0.1, momentum=0.9, clipnorm=0.05),
    "clipvalue": quiet("SGD", 0.1, momentum=0.9, clipvalue=0.01),
    "global_clipnorm": quiet("SGD", 0.1, momentum=0.9, global_clipnorm=0.05),
}


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


def same(found, expected, **tolerance):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


def distance(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(np.abs(one - two).max() for one, two in pairs)


def variables_of(optimizer):
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def check(name, make_optimizer, reference, strategy, **tolerance):
    """Compares a strategy with another one; returns both models."""
    batch_size = ROWS * strategy.num_replicas_in_sync
    # Lion takes the sign alone, so where a sum of gradients is near 0 its rounding decides on a
    # whole step. Whole numbers, and weights in steps of 1/64, are summed without rounding.
    lion = name == "Lion"
    make_model, make_data = (line, whole_numbers) if lion else (classifier, classes)
    arguments = (make_model, make_optimizer, *make_data(STEPS * batch_size), batch_size)
    with reference.scope():
        one, one_loss = trained(*arguments)
    with strategy.scope():
        many, many_loss = trained(*arguments)
    assert int(np.asarray(many.optimizer.iterations)) == STEPS
    strategies.verify_equal(strategy, many.variables)
    strategies.verify_equal(strategy, variables_of(many.optimizer))
    tolerance = {"atol": 1e-5, "rtol": 1e-5, "err_msg": name, **tolerance}
    same(many.get_weights(), one.get_weights(), **tolerance)
    same(many_loss, one_loss, **tolerance)
    states = [[np.asarray(v) for v in variables_of(model.optimizer)] for model in (many, one)]
    same(*states, **tolerance)
    return many, one


config = TFConfig.from_env()
count = (1 if config is None else len(config.cluster.training_tasks)) * replicas
# As many logical CPUs as there are replicas, for the stock strategy.
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
strategy = strategies.from_tf_config(num_replicas=replicas, options=options)
assert strategy.num_replicas_in_sync == count
for name, make_optimizer in OPTIMIZERS.items():
    if chosen and name not in chosen:
        continue
    try:
        check(name, make_optimizer, tf.distribute.get_strategy(), strategy)
    except RuntimeError as error:
        # Keras 3 overwrites the weights inside a condition, where replicas of one process cannot
        # meet; under the stock strategy as well.
        assert "`merge_call` called" in str(error), error
        assert (keras.__name__, name) == ("keras", "averages, overwritten") and replicas > 1
# Its own collectives would take the numbers of ours, where these are TensorFlow's.
stock = tf.distribute.MirroredStrategy(
    [f"CPU:{number}" for number in range(count)], tf.distribute.ReductionToOneDevice()
)
for name, make_optimizer in CLIPPED.items():
    if chosen and name not in chosen:
        continue
    clipped, _ = check(name, make_optimizer, stock, strategy)
    batch_size = ROWS * count
    plain, alone = (
        trained(classifier, make, *classes(STEPS * batch_size), batch_size)[0]
        for make in (OPTIMIZERS["momentum"], make_optimizer)
    )
    assert distance(clipped, plain) > 1e-2, "nothing was clipped"
    as_one_process = count == 1 or keras.__name__ == "tf_keras"
    assert (distance(clipped, alone) < 1e-5) == as_one_process
print("passed")
