"""Registration of the layer with tf_keras, as soon as any code imports tf_keras."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TF_KERAS = "tf_keras"
_LAYER = "strategies.embedding.tf_keras_layer"


def register_with_tf_keras() -> None:
    """Registers the layer with tf_keras, so that tf_keras can load models that contain it.

    tf_keras takes seconds to import, so an import hook waits for it unless it is imported already.
    """
    # `load_model` does not import the layer. A saved file names the layer's module, but tf_keras
    # 2.21.0 uses it only for a model's class: layers of a functional model are looked up by their
    # registered name, and if it is not found, tf_keras tries to call a string (`module_objects` in
    # `deserialize_keras_object` of tf_keras/src/saving/serialization_lib.py). And no code of this
    # package runs between a user's `import tf_keras` and `load_model`.
    if sys.modules.get(_TF_KERAS) is not None:
        importlib.import_module(_LAYER)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook that wraps the loader of tf_keras in one that registers the layer."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TF_KERAS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        importlib.import_module(_LAYER)
