"""Makes Keras 3's loss scaling skip a step on all replicas or on none."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_CHECK = "check_finite"

# The strategies that are running a step, and Keras's method, which is overridden during steps.
_running: list[tf.distribute.Strategy] = []
_overridden: Callable[..., Any] | None = None
_lock = threading.Lock()


@contextlib.contextmanager
def agree_on_overflow(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Makes all replicas of a strategy skip a step together, under Keras 3's `mixed_float16`.

    `compile` wraps the optimizer in `keras.optimizers.LossScaleOptimizer`, which skips a step
    whose gradients overflow. It checks a replica's own gradients, before they are summed: with
    several workers, one would skip a step in which the others wait for it; with several replicas in
    a process, only the first one's gradients would be checked. Keras has no setting for this, so
    its method `check_finite` is overridden, while a step runs under this strategy, by one that
    combines the results of all replicas. Other strategies are not affected, and the method is
    restored when the last running step has ended.
    """
    global _overridden
    cls = _loss_scale_optimizer()
    if cls is None or not hasattr(cls, _CHECK):
        yield
        return
    with _lock:
        if not _running:
            _overridden = getattr(cls, _CHECK)
            setattr(cls, _CHECK, _check_on_all_replicas(_overridden))
        _running.append(strategy)
    try:
        yield
    finally:
        with _lock:
            _running.remove(strategy)
            if not _running:
                setattr(cls, _CHECK, _overridden)


def check_overflow_can_be_agreed() -> None:
    """Checks that Keras 3's LossScaleOptimizer has the method that `agree_on_overflow` overrides.

    Raises:
      ValueError: if it has no such method.
    """
    cls = _loss_scale_optimizer()
    if cls is None or hasattr(cls, _CHECK):
        return
    version = getattr(sys.modules.get("keras"), "__version__", "of an unknown version")
    raise ValueError(
        "Under mixed_float16 all replicas must skip the same steps, which requires the method "
        f"keras.optimizers.LossScaleOptimizer.{_CHECK}. Received: Keras {version}, which does not "
        "have it. Use mixed_bfloat16, or Keras 3.15."
    )


def _loss_scale_optimizer() -> Any:
    optimizers = getattr(sys.modules.get("keras"), "optimizers", None)
    return getattr(optimizers, "LossScaleOptimizer", None)


def _check_on_all_replicas(check_finite: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `check_finite` that is true if the gradients of all replicas are finite."""

    @functools.wraps(check_finite)
    def check_together(self: Any, grads: Any) -> Any:
        finite = check_finite(self, grads)
        context = tf.distribute.get_replica_context()
        if context is None or not any(context.strategy is one for one in _running):
            return finite
        # By a sum, because the strategy's sums leave out replicas without examples.
        verdict = tf.where(finite, 0.0, float("nan"))
        return tf.math.is_finite(context.all_reduce(tf.distribute.ReduceOp.SUM, verdict))

    return check_together
