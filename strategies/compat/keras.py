"""Assumptions about the internals of Keras's models, optimizers and callbacks.

Keras does not tell a strategy which method of a model is running, or which layer a variable belongs
to. Both are read from Python's call stack. A variable's name shows which optimizer it belongs to,
and its purpose. Tested with Keras 3.15.1 and tf_keras 2.21.0; if a comment names only one of the
two, the other has no equivalent. The other modules here cover losses, steps and replicas.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import tensorflow as tf

from strategies.compat.call_stack import frames, innermost_self
from strategies.compat.tensorflow import unwrap_decorators

# Names of variables.
# The state of Keras 3's SeedGenerator: a seed, and the number of draws.
SEED_STATE = "seed_generator_state"
RNN_STATE = "rnn_state"  # of a stateful RNN of Keras 3, kept from batch to batch
# The scale of Keras 3's LossScaleOptimizer.
LOSS_SCALE = "dynamic_scale"
# The step counter of an optimizer.
_ITERATIONS = "iteration"
# Slot variables that are written outside of updates: in Keras 3 the accumulator of each replica's
# own gradients, and the moving average of a variable; in tf_keras the moving average.
_WRITTEN_OUTSIDE = ("_gradient_accumulator", "_average")
_WRITTEN_OUTSIDE_PREFIX = "average/"

# The methods of tf_keras's optimizers that call a loss function passed by the user.
_CALL_LOSS = ("compute_gradients", "minimize")
TRAIN_STEP, TEST_STEP = "train_step", "test_step"
# The attributes of Keras 3's BackupAndRestore with the paths of its files, in the order of writing.
BACKUP_PATHS = ("_weights_path", "_training_metadata_path")
_STEPS = (TRAIN_STEP, TEST_STEP, "predict_step")
_METHODS = ("fit", "evaluate", "predict")
# The arguments of these methods that determine the number of steps.
_NUMBERS = ("epochs", "initial_epoch", "batch_size", "steps_per_epoch", "steps")


def running_method() -> str | None:
    """Returns the name of the innermost running method of a model; None if none is running.

    The name is "fit", "evaluate" or "predict", of the `Model` of Keras 3 or tf_keras. Validation
    in `fit` is "evaluate".

    >>> running_method() is None
    True
    """
    innermost_method = _innermost_method()
    return innermost_method and innermost_method[0]


def running_call() -> tuple[str, Any, str]:
    """Returns the innermost running method of a model in this thread, the model, and a description.

    The description has the arguments that determine the number of steps. Returns ("", None, "") if
    no method is running.

    >>> running_call()
    ('', None, '')
    """
    innermost_method = _innermost_method()
    if innermost_method is None:
        return "", None, ""
    method, values = innermost_method[0], innermost_method[1].f_locals
    numbers = {name: values.get(name) for name in _NUMBERS}
    first = next(iter(tf.nest.flatten(values.get("x"))), None)
    shape = getattr(first, "shape", None)
    numbers["examples"] = shape[0] if shape else None
    texts = (f"{name}={value}" for name, value in numbers.items() if value is not None)
    return method, values.get("self"), f"{method}({', '.join(texts)})"


def methods() -> dict[CodeType, str]:
    """Returns the names of the `Model` methods that run steps, keyed by their code objects."""
    # A script loads Keras 3, tf_keras, or both.
    models = [getattr(sys.modules.get(name), "Model", None) for name in ("keras", "tf_keras")]
    pairs = itertools.product(filter(None, models), _METHODS)
    return {inspect.unwrap(getattr(model, name)).__code__: name for model, name in pairs}


def _innermost_method() -> tuple[str, FrameType] | None:
    names = methods()
    return next(((names[f.f_code], f) for f in frames() if f.f_code in names), None)


def path_of(name: str) -> str:
    """Returns the path of the variable being created: the names of its layers, then its own.

    For Keras 3 this is `keras.Variable.path`. Otherwise the names are those of the enclosing
    `tf.name_scope`s, which tf_keras opens for each layer.

    >>> with tf.name_scope("dense"):
    ...     path_of("kernel")
    'dense/kernel'

    Args:
      name: the name of the variable itself.
    """
    cls = getattr(sys.modules.get("keras"), "Variable", None)
    owner = innermost_self(lambda one: isinstance(one, cls)) if cls else None
    if owner is not None:
        return owner.path if owner.name == name else name
    with tf.init_scope(), tf.name_scope(name) as path:
        return path.rstrip("/")


def gradient_in_update() -> Any:
    """Returns the gradient passed to an optimizer's running `update_step`; None if none runs."""
    for frame in frames():
        is_update = frame.f_code.co_name == "update_step"
        if is_update and is_optimizer(frame.f_locals.get("self")):
            return frame.f_locals[frame.f_code.co_varnames[1]]
    return None


def is_read_by_optimizer() -> bool:
    """Returns whether a method of an optimizer is accessing variables, also outside `update_step`.

    Weight decay, for example, is applied outside `update_step`.

    >>> is_read_by_optimizer()
    False
    """
    for frame in frames():
        # A nested function of a method has `self` in its closure, and so in its local variables.
        if is_optimizer(frame.f_locals.get("self")):
            return frame.f_code.co_name not in _CALL_LOSS
    return False


def is_read_by_get_weights() -> bool:
    """Returns whether `get_weights` of a layer of Keras 3 or tf_keras is running.

    >>> is_read_by_get_weights()
    False
    """
    for frame in frames():
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "get_weights" and hasattr(type(owner), "get_weights"):
            return any(is_of_keras(cls) for cls in type(owner).__mro__)
    return False


def is_writing_h5() -> bool:
    """Returns whether Keras 3 or tf_keras is writing a file of the legacy HDF5 format.

    `.weights.h5` files have another format, in which each layer writes its own state.
    """
    name = "save_subset_weights_to_hdf5_group"
    return any(frame.f_code.co_name == name for frame in frames())


def keras_backend() -> str | None:
    """Returns the backend of Keras 3, such as "tensorflow"; None if Keras 3 is not loaded."""
    configuration = getattr(sys.modules.get("keras"), "config", None)
    return configuration and configuration.backend()


def step_of(fn: Callable[..., Any]) -> tuple[Any, str]:
    """Returns the model that a step function belongs to, or None, and the name of its method.

    Keras 3 passes the bound method `model.train_step` to `strategy.run`. tf_keras passes a function
    `run_step` that calls the method of `model`, a variable of its closure.
    """
    fn = inspect.unwrap(fn)
    model = getattr(fn, "__self__", None)
    if model is not None and getattr(fn, "__name__", "") in _STEPS:
        return _if_model(model), fn.__name__
    code = getattr(fn, "__code__", None)
    if code is None or not getattr(fn, "__module__", "").startswith("tf_keras."):
        return None, ""
    closure = dict(zip(code.co_freevars, fn.__closure__ or (), strict=True))
    model = closure["model"].cell_contents if "model" in closure else None
    return _if_model(model), next((name for name in _STEPS if name in code.co_names), "")


def variables_of(model: Any, kind: str) -> list[Any]:
    """Returns the "weights" or "trainable_variables" of a model; [] if it is not built yet."""
    try:
        return list(getattr(model, kind))
    except ValueError:  # raised by tf_keras for a model without variables so far
        return []


def metrics_of(model: Any) -> list[Any]:
    """Returns the metrics of a model; for tf_keras, also those of `compile` before it is built."""
    user_metrics = getattr(getattr(model, "compiled_metrics", None), "_user_metrics", None)
    objects = [metric for metric in tf.nest.flatten(user_metrics) if hasattr(metric, "variables")]
    return [*model.metrics, *objects]


def tensorflow_variable(variable: Any) -> Any:
    """Returns the TensorFlow variable in a Keras 3 variable or an autocast variable of tf_keras."""
    for wrapper in ("_value", "_variable"):
        # Not by getattr: the `_value` of a TensorFlow metric variable sums over all workers.
        inner = getattr(variable, "__dict__", {}).get(wrapper)
        variable = inner if isinstance(inner, tf.Variable) else variable
    return variable


def is_iterations(kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a variable is an optimizer's step counter.

    In tf_keras, a step counter is recognized by having a name, which a model's counters lack.

    Args:
      kwargs: the arguments that the variable is created with.
    """
    first = kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA
    return kwargs.get("name") == _ITERATIONS or kwargs.get("name") is not None and first


def is_written_outside_updates(name: str) -> bool:
    """Returns whether an optimizer writes a slot variable outside of its variable's updates.

    >>> is_written_outside_updates("dense_kernel_average")
    True
    """
    return name.endswith(_WRITTEN_OUTSIDE) or name.startswith(_WRITTEN_OUTSIDE_PREFIX)


def is_of_keras(definition: Any) -> bool:
    """Returns whether a class or function is defined in Keras or tf_keras."""
    return definition.__module__.split(".")[0] in ("keras", "tf_keras")


def is_optimizer(value: Any) -> bool:
    """Returns whether a value is an optimizer of Keras 3 or tf_keras, including legacy ones.

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

    Keras's optimizers pass `extended.update` a function that has the optimizer in its closure.
    """
    function = inspect.unwrap(unwrap_decorators(update)[1])
    if not inspect.isfunction(function):
        return None
    owner = inspect.getclosurevars(function).nonlocals.get("self")
    return owner if hasattr(owner, "update_step") else None


def inner_optimizer(optimizer: Any) -> Any:
    """Returns the optimizer that a LossScaleOptimizer wraps; any other optimizer unchanged."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def optimizer_variables(model: Any) -> list[Any]:
    """Returns the variables of all optimizers of a model; an empty list if it has none."""
    return [each for optimizer in optimizers_of(model) for each in state_of(optimizer)]


def state_of(optimizer: Any) -> list[Any]:
    """Returns the variables of an optimizer: its state, its settings and its counter."""
    variables = getattr(optimizer, "variables", ())
    return list(variables() if callable(variables) else variables)


def constraint_of(optimizer: Any, variable: Any) -> Any:
    """Returns the constraint that an optimizer applies to a TensorFlow variable, or None."""
    own = getattr(variable, "constraint", None)
    trained = getattr(optimizer, "_trainable_variables", ())  # of Keras 3
    constraints = (v.constraint for v in trained if tensorflow_variable(v) is variable)
    return next(constraints, None) or own


def optimizers_of(model: Any) -> list[Any]:
    """Returns the optimizers of a model: that of `compile`, then attributes of it and its layers.

    An attribute may also be a list or dictionary of optimizers. A GAN has two, for instance.
    """
    candidates = [getattr(model, "optimizer", None)]
    for owner in layers_of(model):
        # The optimizer that a submodel was compiled with does not train it here.
        for value in (each for name, each in vars(owner).items() if name != "optimizer"):
            several = value.values() if isinstance(value, dict) else value
            candidates += several if isinstance(value, list | tuple | dict) else [value]
    return list({id(each): each for each in candidates if is_optimizer(each)}.values())


def callbacks_of_running_fit() -> list[Any]:
    """Returns the callbacks of the innermost running method of a model, if that is `fit`."""
    method, frame = _innermost_method() or ("", None)
    values = frame.f_locals.get("callbacks") if frame and method == "fit" else None
    return tf.nest.flatten(getattr(values, "callbacks", values) or [])


def running_fit() -> RunningFit:
    """Returns the running `fit` of Keras 3."""
    return RunningFit(next(f.f_locals for f in frames() if "epoch_iterator" in f.f_locals))


def initial_epoch_of_fit() -> int:
    """Returns the argument `initial_epoch` of the running `fit`, before it has begun an epoch."""
    _, frame = _innermost_method() or ("", None)
    return int(frame.f_locals["initial_epoch"]) if frame is not None else 0


class RunningFit:
    """What a running `fit` of Keras 3 knows of its data.

    Args:
      values: the local variables of `fit`.

    Attributes:
      epochs: Keras's epoch iterator.
      initial_epoch: the first epoch.
      epoch: the epoch; None before the first one.
      iterator: the iterator from which batches are taken; None before the first batch.
    """

    def __init__(self, values: Mapping[str, Any]):
        self.epochs: Any = values["epoch_iterator"]
        self.initial_epoch: int = values["initial_epoch"]
        self.epoch: int | None = values.get("epoch")
        self.iterator = values.get("iterator")

    @property
    def steps(self) -> int | None:
        """The number of steps after which the data end; None if it is not known (yet)."""
        return self.epochs._num_batches

    @steps.setter
    def steps(self, steps: int | None) -> None:
        self.epochs._num_batches = steps

    @property
    def element_spec(self) -> Any:
        """The `tf.TypeSpec`s of the batches."""
        return self.epochs._get_iterator().element_spec

    @property
    def has_endless_iterator(self) -> bool:
        """Whether epochs are parts of one iterator, as with `steps_per_epoch`."""
        return self.epochs.steps_per_epoch is not None

    def new_iterator(self) -> Any:
        """Returns an iterator like that from which an epoch takes its batches."""
        return iter(self.epochs._get_iterator())


def is_building_model() -> bool:
    """Returns whether Keras 3 reads a batch only for its shapes, to build a model."""
    return any(frame.f_code.co_name == "_maybe_symbolic_build" for frame in frames())


def restart_threads() -> None:
    """Restarts the threads behind a `PyDataset` of Keras 3, before an iterator over it starts.

    Otherwise the iterator would begin with batches that the threads prefetched for the previous
    one, not the same number on each worker.
    """
    adapter = _running_adapter()
    if (
        enqueuer := getattr(adapter, "enqueuer", None)
    ) is not None and adapter.num_batches is not None:
        enqueuer.stop()  # restarted when the first batch is requested
        enqueuer.ready_queue.queue.clear()


def replace_generator(wrap: Callable[[Iterator[Any]], Iterator[Any]]) -> bool:
    """Makes Keras 3 read its generator through `wrap`; returns whether it reads a generator."""
    adapter = _running_adapter()
    is_generator = type(adapter).__name__ == "GeneratorDataAdapter"
    if is_generator:
        adapter.generator = lambda make=adapter.generator: wrap(make())
    return is_generator


def adapter_name() -> str:
    """Returns the name of the class through which a running method of Keras 3 reads its data.

    >>> adapter_name()
    'NoneType'
    """
    return type(_running_adapter()).__name__


def _running_adapter() -> Any:
    iterator = innermost_self(lambda one: type(one).__name__ == "TFEpochIterator")
    return getattr(iterator, "data_adapter", None)


def begin_at(model: Any, epoch: int) -> None:
    """Makes the running `fit` of Keras 3 begin with the given epoch."""
    model._initial_epoch = epoch


def layers_of(model: Any) -> list[Any]:
    """Returns a model and all of its layers, including nested ones."""
    return list(model._flatten_layers())


@contextlib.contextmanager
def watch_gradients(model: Any, watch: Callable[[list[Any], list[Any]], None]) -> Iterator[None]:
    """Passes each replica's gradients to a function, before they are summed, while the block runs.

    With a LossScaleOptimizer, these are the unscaled gradients. The training step is retraced.

    Args:
      model: a compiled model of Keras 3 or tf_keras.
      watch: a function of the gradients and their variables, called in a step's graph.
    """
    optimizers = {id(one): one for one in map(inner_optimizer, optimizers_of(model))}
    model.train_function = None
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, model, "train_function", None)
        for optimizer in optimizers.values():
            name, method = _wrap_apply(optimizer, watch)
            object.__setattr__(optimizer, name, method)
            stack.callback(object.__delattr__, optimizer, name)
        yield


def _wrap_apply(optimizer: Any, watch: Callable[..., None]) -> tuple[str, Callable[..., Any]]:
    """Returns the name of the method that applies gradients, and a replacement for it."""
    is_keras_3 = hasattr(optimizer, "apply")
    name = "apply" if is_keras_3 else "apply_gradients"
    apply = getattr(optimizer, name)

    @functools.wraps(apply)
    def apply_watched(gradients: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = list(gradients)
        if is_keras_3:
            variables = args[0] if args else kwargs.get("trainable_variables")
            watch(gradients, list(variables or optimizer._trainable_variables))
        else:
            watch(*map(list, zip(*gradients, strict=True)))
        return apply(gradients, *args, **kwargs)

    return name, apply_watched


def dtype_policy_of(layer: Any) -> Any:
    """Returns the dtype policy of a layer; tf_keras has no public name for it."""
    return getattr(layer, "dtype_policy", None) or layer._dtype_policy


def default_hook(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a callback's hook as a no-op, so that Keras need not wait for the step's logs."""
    hook._is_default = True  # type: ignore[attr-defined]
    return hook


def is_default_hook(hook: Callable[..., Any]) -> bool:
    """Returns whether a callback's hook is a no-op."""
    return getattr(hook, "_is_default", False)


def initial_epoch(model: Any) -> int:
    """Returns the epoch from which Keras 3's `BackupAndRestore` resumes training; 0 for none."""
    return getattr(model, "_initial_epoch", None) or 0


def _if_model(value: Any) -> Any:
    is_model = all(hasattr(type(value), name) for name in ("trainable_variables", "metrics"))
    return value if is_model else None
