"""The only door to the internals of Keras: each assumption about them stands here.

Keras tells a strategy neither which of a model's methods is running nor which layer a variable is
of. Both are seen on Python's stack, where its methods and the objects they belong to are. Which
optimizer a variable belongs to, and what for, is told from its name. Checked on Keras 3.15.1 and
tf_keras 2.21.0; where a comment names one of the two, the other has no such thing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import tensorflow as tf

from strategies._tensorflow import unwrap_decorators
from strategies.frames import frames, innermost

# Names of variables.
# Keras 3's SeedGenerator: a seed, and how often it was drawn from.
SEED_STATE = "seed_generator_state"
# Keras 3's LossScaleOptimizer: the scale.
LOSS_SCALE = "dynamic_scale"
# An optimizer's count of steps.
_ITERATIONS = "iteration"
# What an optimizer writes outside of its updates: Keras 3's sum of each replica's own gradients and
# moving average of a variable; tf_keras's moving average.
_WRITTEN_OUTSIDE = ("_gradient_accumulator", "_average")
_WRITTEN_OUTSIDE_PREFIX = "average/"

TRAIN_STEP, _TEST_STEP = "train_step", "test_step"
_STEPS = (TRAIN_STEP, _TEST_STEP, "predict_step")
_LOSS = "compute_loss"
# What divides a loss by the number of replicas in Keras, tf_keras and TensorFlow themselves.
_DIVIDE_LOSS = ("scale_loss_for_distribution", "compute_average_loss", "scale_regularization_loss")
_LIBRARIES = ("keras", "tf_keras", "tensorflow")
_CHECK = "check_finite"
_METHODS = ("fit", "evaluate", "predict")
# Their arguments that say how many steps there are.
_NUMBERS = ("epochs", "initial_epoch", "batch_size", "steps_per_epoch", "steps")

# The strategies that run a step at this moment, and the method that is overridden for them.
_running: list[tf.distribute.Strategy] = []
_overridden: Callable[..., Any] | None = None
_lock = threading.Lock()


def running_method() -> str | None:
    """Returns the name of the innermost method of a model that is running; None for none.

    It is "fit", "evaluate" or "predict", of Keras 3's or tf_keras's `Model`; validation in `fit`
    is "evaluate".

    >>> running_method() is None
    True
    """
    found = _innermost_method()
    return found and found[0]


def running_call() -> tuple[str, Any, str]:
    """Returns the innermost method of a model that runs in this thread, the model, and a text.

    The text has its arguments that determine the number of steps. All are empty if there is none.

    >>> running_call()
    ('', None, '')
    """
    found = _innermost_method()
    if found is None:
        return "", None, ""
    method, values = found[0], found[1].f_locals
    numbers = {name: values.get(name) for name in _NUMBERS}
    first = next(iter(tf.nest.flatten(values.get("x"))), None)
    shape = getattr(first, "shape", None)
    numbers["rows"] = shape[0] if shape else None
    given = (f"{name}={value}" for name, value in numbers.items() if value is not None)
    return method, values.get("self"), f"{method}({', '.join(given)})"


def methods() -> dict[CodeType, str]:
    """Returns the names of the methods of models that make steps, by their code."""
    # A script for one of the two Keras does not bring the other.
    models = [getattr(sys.modules.get(name), "Model", None) for name in ("keras", "tf_keras")]
    pairs = itertools.product(filter(None, models), _METHODS)
    return {inspect.unwrap(getattr(model, name)).__code__: name for model, name in pairs}


def _innermost_method() -> tuple[str, FrameType] | None:
    names = methods()
    return next(((names[f.f_code], f) for f in frames() if f.f_code in names), None)


def path_of(name: str) -> str:
    """Returns the path of the variable being created: the names of its layers and its own.

    Of Keras 3 that is `keras.Variable.path`. For anything else the names are those of the
    `tf.name_scope`s around it, which tf_keras opens for each layer.

    >>> with tf.name_scope("dense"):
    ...     path_of("kernel")
    'dense/kernel'

    Args:
      name: the variable's own.
    """
    made = getattr(sys.modules.get("keras"), "Variable", None)
    owner = innermost(lambda found: isinstance(found, made)) if made else None
    if owner is not None:
        return owner.path if owner.name == name else name
    with tf.init_scope(), tf.name_scope(name) as path:
        return path.rstrip("/")


def gradient_in_update() -> Any:
    """Returns the gradient with which an optimizer's `update_step` runs; None if none runs.

    >>> gradient_in_update()
    """
    for frame in frames():
        is_named_so = frame.f_code.co_name == "update_step"
        if is_named_so and is_optimizer(frame.f_locals.get("self")):
            return frame.f_locals[frame.f_code.co_varnames[1]]
    return None


def is_writing_h5() -> bool:
    """Returns whether a file of the old HDF5 format is being written, by either version.

    `.weights.h5` files are of another format, whose layers write what they have.
    """
    name = "save_subset_weights_to_hdf5_group"
    return any(frame.f_code.co_name == name for frame in frames())


def keras_backend() -> str | None:
    """Returns what Keras 3 computes with, such as "tensorflow"; None where it is not loaded."""
    configuration = getattr(sys.modules.get("keras"), "config", None)
    return configuration and configuration.backend()


def step_of(fn: Callable[..., Any]) -> tuple[Any, str]:
    """Returns the model that a step function belongs to, or None, and the name of its method.

    Keras 3 gives `strategy.run` the model's bound method, `model.train_step`; tf_keras a function
    `run_step` that calls that of `model`, a variable around it.
    """
    fn = inspect.unwrap(fn)
    model = getattr(fn, "__self__", None)
    if model is not None and getattr(fn, "__name__", "") in _STEPS:
        return _if_model(model), fn.__name__
    code = getattr(fn, "__code__", None)
    if code is None or not getattr(fn, "__module__", "").startswith("tf_keras."):
        return None, ""
    around = dict(zip(code.co_freevars, fn.__closure__ or (), strict=True))
    model = around["model"].cell_contents if "model" in around else None
    return _if_model(model), next((name for name in _STEPS if name in code.co_names), "")


def own_loss_method(fn: Callable[..., Any]) -> tuple[Any, str]:
    """Returns the model that a step function belongs to, and its own method that makes the loss.

    The name of the method is empty where Keras makes the loss, and where nothing depends on it: an
    evaluation whose logs have the loss as it is.
    """
    model, step = step_of(fn)
    if model is None or step not in (TRAIN_STEP, _TEST_STEP):
        return None, ""
    method = getattr(type(model), step)
    if not is_of_keras(method):
        return model, step if step == TRAIN_STEP else ""
    is_used = step == TRAIN_STEP or method.__module__.startswith("keras.")
    return model, _LOSS if is_used and not is_of_keras(type(model).compute_loss) else ""


def is_dividing_loss() -> bool:
    """Returns whether the number of replicas is asked for by what may divide a loss by it.

    That is anything but TensorFlow and Keras, of which only some functions are there for this.

    >>> is_dividing_loss()
    True
    """
    for frame in itertools.islice(frames(), 1, None):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if name != "num_replicas_in_sync":  # of tf.distribute.ReplicaContext: who asks for that?
            return name in _DIVIDE_LOSS or module.split(".")[0] not in _LIBRARIES
    return False


def trained_variables(model: Any) -> list[Any]:
    """Returns the trainable variables of a model; an empty list if it is not built yet."""
    try:
        return list(model.trainable_variables)
    except ValueError:  # tf_keras's, of a model without variables so far
        return []


def metrics_of(model: Any) -> list[Any]:
    """Returns the metrics of a model; with tf_keras those given to `compile` before it is built."""
    given = getattr(getattr(model, "compiled_metrics", None), "_user_metrics", None)
    objects = [metric for metric in tf.nest.flatten(given) if hasattr(metric, "variables")]
    return [*model.metrics, *objects]


def tensorflow_variable(variable: Any) -> Any:
    """Returns the TensorFlow variable inside of Keras 3's, or of tf_keras's that casts."""
    for wrapper in ("_value", "_variable"):
        # Not its property: that of a metric's variable in TensorFlow sums over all workers.
        inner = getattr(variable, "__dict__", {}).get(wrapper)
        variable = inner if isinstance(inner, tf.Variable) else variable
    return variable


def is_iterations(kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a variable is an optimizer's count of steps.

    tf_keras says no more of it than a name, and gives none to the counters of a model.

    Args:
      kwargs: what the variable is made with.
    """
    first = kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA
    return kwargs.get("name") == _ITERATIONS or kwargs.get("name") is not None and first


def is_written_outside_updates(name: str) -> bool:
    """Returns whether an optimizer writes a slot variable outside of its updates, whole.

    >>> is_written_outside_updates("dense_kernel_average")
    True
    """
    return name.endswith(_WRITTEN_OUTSIDE) or name.startswith(_WRITTEN_OUTSIDE_PREFIX)


def is_unsynchronized_state(kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a variable is a layer's state that nothing else keeps alike on all workers.

    Slot variables are not: they are made beside a variable, and updated from reduced gradients.
    """
    return (
        kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE)
        and kwargs.get("synchronization")
        in (None, tf.VariableSynchronization.AUTO, tf.VariableSynchronization.ON_WRITE)
        and kwargs.get("trainable") is False
        and "colocate_with" not in kwargs
        and _initial_dtype(kwargs).is_floating
    )


def _initial_dtype(kwargs: Mapping[str, Any]) -> tf.DType:
    if kwargs.get("dtype") is not None:
        return tf.as_dtype(kwargs["dtype"])
    value = kwargs["initial_value"]
    # Nothing averages integers, and what a function returns is not known yet.
    return tf.int64 if callable(value) else tf.convert_to_tensor(value).dtype


def is_of_keras(made: Any) -> bool:
    """Returns whether a class or function is one of Keras's or tf_keras's."""
    return made.__module__.split(".")[0] in ("keras", "tf_keras")


def is_optimizer(value: Any) -> bool:
    """Returns whether a value is an optimizer: Keras's, tf_keras's or its legacy ones.

    >>> import keras
    >>> is_optimizer(keras.optimizers.SGD()), is_optimizer(keras.layers.Dense(1))
    (True, False)
    """
    methods = ("update_step", "apply_gradients")
    return all(hasattr(type(value), name) for name in methods) or is_legacy(value)


def is_legacy(optimizer: Any) -> bool:
    """Returns whether an optimizer is implemented like those of `tf_keras.optimizers.legacy`."""
    return hasattr(type(optimizer), "_resource_apply_dense")


def optimizer_of(update: Callable[..., Any]) -> Any | None:
    """Returns the optimizer that an update function belongs to; None for any other function.

    Keras's optimizers pass a function of their own to `extended.update`, which knows them.
    """
    function = inspect.unwrap(unwrap_decorators(update)[1])
    if not inspect.isfunction(function):
        return None
    found = inspect.getclosurevars(function).nonlocals.get("self")
    return found if hasattr(found, "update_step") else None


def inner_optimizer(optimizer: Any) -> Any:
    """Returns the optimizer that a LossScaleOptimizer wraps; any other as it is."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def optimizer_variables(model: Any) -> list[Any]:
    """Returns the variables of all optimizers of a model; none without one."""
    found = [getattr(optimizer, "variables", ()) for optimizer in optimizers_of(model)]
    return [each for one in found for each in (one() if callable(one) else one)]


def optimizers_of(model: Any) -> list[Any]:
    """Returns the optimizers of a model, the compiled one first, and others that it or a layer has.

    Those are attributes, or in lists and dictionaries that are: a GAN has two, for instance.
    """
    found = [getattr(model, "optimizer", None)]
    for owner in layers_of(model):
        # Nobody trains a part with the optimizer that it was compiled with.
        for value in (each for name, each in vars(owner).items() if name != "optimizer"):
            several = value.values() if isinstance(value, dict) else value
            found += several if isinstance(value, list | tuple | dict) else [value]
    return list({id(each): each for each in found if is_optimizer(each)}.values())


def running_fit() -> tuple[Any, int]:
    """Returns the epoch iterator of Keras 3's `fit` that runs, and the epoch it begins with."""
    values = next(f.f_locals for f in frames() if "epoch_iterator" in f.f_locals)
    return values["epoch_iterator"], values["initial_epoch"]


def restart_threads() -> None:
    """Has the threads behind a `PyDataset` of Keras 3 begin anew, before an iterator over it does.

    Under a strategy `fit` reads a batch to build the model, and begins again. What threads had read
    by then would come first, and another number of last batches be missing on each worker.
    """
    adapter = _running_adapter()
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is not None and adapter.num_batches is not None:
        enqueuer.stop()  # the first batch that is asked for starts it
        enqueuer.ready_queue.queue.clear()


def replace_generator(wrap: Callable[[Iterator[Any]], Iterator[Any]]) -> bool:
    """Has Keras 3 read a generator through another one; returns whether it was passed any."""
    adapter = _running_adapter()
    if type(adapter).__name__ != "GeneratorDataAdapter":
        return False
    make = adapter.generator
    adapter.generator = lambda: wrap(make())
    return True


def _running_adapter() -> Any:
    found = innermost(lambda one: type(one).__name__ == "TFEpochIterator")
    return getattr(found, "data_adapter", None)


def begin_at(model: Any, epoch: int) -> None:
    """Has the running `fit` of Keras 3 begin with another epoch."""
    model._initial_epoch = epoch


def layers_of(model: Any) -> list[Any]:
    """Returns all layers of a model, and those in them."""
    return list(model._flatten_layers())


@contextlib.contextmanager
def watched_gradients(model: Any, watch: Callable[[list[Any], list[Any]], None]) -> Iterator[None]:
    """Has a function see each replica's own gradients in the block, before they are summed.

    With a LossScaleOptimizer it sees those that are applied. The model's steps are traced anew.

    Args:
      model: Keras 3's or tf_keras's, compiled.
      watch: is given the gradients and their variables, in a step's graph.
    """
    optimizers = {id(one): one for one in map(inner_optimizer, optimizers_of(model))}
    model.train_function = None
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, model, "train_function", None)
        for optimizer in optimizers.values():
            name, method = _watched(optimizer, watch)
            object.__setattr__(optimizer, name, method)
            stack.callback(object.__delattr__, optimizer, name)
        yield


def _watched(optimizer: Any, watch: Callable[..., None]) -> tuple[str, Callable[..., Any]]:
    """Returns the name of the method that applies gradients, and one that has them seen first."""
    is_of_tf_keras = type(optimizer).__module__.startswith("tf_keras.")
    is_keras_3 = hasattr(optimizer, "apply") and not is_of_tf_keras
    name = "apply" if is_keras_3 else "apply_gradients"
    apply = getattr(optimizer, name)

    @functools.wraps(apply)
    def apply_watched(gradients: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = list(gradients)
        if is_keras_3:
            of = args[0] if args else kwargs.get("trainable_variables")
            watch(gradients, list(of or optimizer._trainable_variables))
        else:
            watch(*map(list, zip(*gradients, strict=True)))
        return apply(gradients, *args, **kwargs)

    return name, apply_watched


def dtype_policy_of(layer: Any) -> Any:
    """Returns the dtype policy of a layer; tf_keras has no public name for it."""
    return getattr(layer, "dtype_policy", None) or layer._dtype_policy


def default_hook(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a callback's hook that does nothing, which Keras need not wait for."""
    hook._is_default = True  # type: ignore[attr-defined]
    return hook


def is_default_hook(hook: Callable[..., Any]) -> bool:
    """Returns whether a callback's hook does nothing."""
    return getattr(hook, "_is_default", False)


def initial_epoch(model: Any) -> int:
    """Returns the epoch that `BackupAndRestore` of Keras 3 has set to go on from; 0 for none."""
    return getattr(model, "_initial_epoch", None) or 0


def _if_model(value: Any) -> Any:
    is_model = all(hasattr(type(value), name) for name in ("trainable_variables", "metrics"))
    return value if is_model else None


@contextlib.contextmanager
def overflow_agreed(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Makes the replicas of a strategy skip a step together, under Keras 3's `mixed_float16`.

    `compile` wraps the optimizer in `keras.optimizers.LossScaleOptimizer`, which skips a step
    whose gradients have overflown. It looks at a replica's own gradients, before they are summed:
    with several workers one would skip what the others wait in, with several replicas the first
    one's gradients decide. Keras has no setting for that, so its method `check_finite` is
    overridden while a step runs under this strategy, by one that asks all replicas. Everywhere
    else it is Keras's, and so it is again when the last step has ended.
    """
    global _overridden
    cls = _loss_scale_optimizer()
    if cls is None or not hasattr(cls, _CHECK):
        yield
        return
    with _lock:
        if not _running:
            _overridden = getattr(cls, _CHECK)
            setattr(cls, _CHECK, _agreeing(_overridden))
        _running.append(strategy)
    try:
        yield
    finally:
        with _lock:
            _running.remove(strategy)
            if not _running:
                setattr(cls, _CHECK, _overridden)


def check_overflow_can_be_agreed() -> None:
    """Checks that Keras 3's LossScaleOptimizer has the method that `overflow_agreed` overrides.

    Raises:
      ValueError: if it has not.
    """
    cls = _loss_scale_optimizer()
    if cls is None or hasattr(cls, _CHECK):
        return
    version = getattr(sys.modules.get("keras"), "__version__", "of an unknown version")
    raise ValueError(
        "Under mixed_float16 all replicas skip a step together, which they agree on in "
        f"keras.optimizers.LossScaleOptimizer.{_CHECK}. Received: Keras {version}, which has no "
        "such method. Use mixed_bfloat16, or Keras 3.15."
    )


def _loss_scale_optimizer() -> Any:
    optimizers = getattr(sys.modules.get("keras"), "optimizers", None)
    return getattr(optimizers, "LossScaleOptimizer", None)


def _agreeing(check_finite: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `check_finite` that is true if the gradients of all replicas are finite."""

    @functools.wraps(check_finite)
    def check_together(self: Any, grads: Any) -> Any:
        finite = check_finite(self, grads)
        context = tf.distribute.get_replica_context()
        if context is None or not any(context.strategy is one for one in _running):
            return finite
        # A sum leaves out what is not a number where a replica has no rows.
        verdict = tf.where(finite, 0.0, float("nan"))
        return tf.math.is_finite(context.all_reduce(tf.distribute.ReduceOp.SUM, verdict))

    return check_together
