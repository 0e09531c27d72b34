"""Base class of callbacks that work with both Keras 3 and tf_keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.compat.keras import default_hook, is_default_hook


def is_of_tf_keras(value: Any) -> bool:
    """Returns whether an object's class is one of tf_keras's, or derived from one.

    >>> import tf_keras
    >>> is_of_tf_keras(tf_keras.optimizers.SGD()), is_of_tf_keras(Callback())
    (True, False)
    """
    return any(cls.__module__.startswith("tf_keras.") for cls in type(value).__mro__)


class Callback:
    """Base class of callbacks for Keras 3 and tf_keras; its hooks do nothing.

    Neither library accepts the other's `Callback` class as its own.

    Attributes:
      runs_on_all_workers: whether all workers have to run its hooks, so that `on_first_worker`
        refuses it.
    """

    runs_on_all_workers = False
    params: Mapping[str, Any] | None = None
    model: Any = None

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Stores the parameters of the run: `epochs`, `steps` and `verbose`."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Stores the model."""
        self.model = model

    @default_hook
    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""

    on_batch_begin = on_batch_end = _nothing
    on_epoch_begin = on_epoch_end = _nothing
    on_train_begin = on_train_end = on_train_batch_begin = on_train_batch_end = _nothing
    on_test_begin = on_test_end = on_test_batch_begin = on_test_batch_end = _nothing
    on_predict_begin = on_predict_end = on_predict_batch_begin = on_predict_batch_end = _nothing

    def _implements_train_batch_hooks(self) -> bool:
        """Returns whether tf_keras has to call the hooks of training batches."""
        hooks = (self.on_train_batch_begin, self.on_train_batch_end)
        return not all(map(is_default_hook, hooks))

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
