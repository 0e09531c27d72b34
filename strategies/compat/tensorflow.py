"""The only module that uses TensorFlow's private modules and attributes; each name appears once.

Tested with TensorFlow 2.18.1 and 2.21.0; `CommunicationOptions`, `CondBranchFuncGraph`,
`DistributedDatasetSpec`, `FunctionCallOptions`, `OptionsDataset`, `PrefetchDataset`,
`ResourceVariable`, `Session`, `WhileCondFuncGraph`, `context`, `in_save_context`, `is_recorded`,
`unwrap_decorators` and the functions below with 2.21.0 only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core.ag_ctx import control_status_ctx
from tensorflow.python.autograph.impl.api import autograph_artifact, tf_convert
from tensorflow.python.data.ops.dataset_ops import _OptionsDataset as OptionsDataset
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.ops.prefetch_op import _PrefetchDataset as PrefetchDataset
from tensorflow.python.distribute.collective_all_reduce_strategy import (
    CollectiveAllReduceExtended,
)
from tensorflow.python.distribute.collective_util import Options as CommunicationOptions
from tensorflow.python.distribute.device_util import canonicalize
from tensorflow.python.distribute.distribute_lib import UpdateContext
from tensorflow.python.distribute.distribute_utils import (
    regroup,
    select_replica,
    update_regroup,
)
from tensorflow.python.distribute.input_lib import (
    DistributedDataset,
    DistributedDatasetSpec,
    DistributedIterator,
    DistributedIteratorSpec,
    InputWorkers,
)
from tensorflow.python.distribute.input_lib import (
    _create_distributed_tensor_spec as distributed_spec,
)
from tensorflow.python.distribute.input_lib import _dummy_tensor_fn as empty_batch
from tensorflow.python.distribute.input_ops import auto_shard_dataset
from tensorflow.python.distribute.input_util import get_distributed_datasets_from_function
from tensorflow.python.distribute.mirrored_run import (
    _MirroredReplicaContext as MirroredReplicaContext,
)
from tensorflow.python.distribute.values import (
    DistributedValues,
    Mirrored,
    MirroredVariable,
    PerReplica,
    PerReplicaSpec,
    SyncOnReadVariable,
)
from tensorflow.python.eager.context import FunctionCallOptions, context, eager_mode, global_seed
from tensorflow.python.eager.record import should_record_backprop as is_recorded
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext as is_compiled_by_xla
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)
from tensorflow.python.ops.resource_variable_ops import (
    ResourceVariable,
    UninitializedVariable,
)
from tensorflow.python.saved_model.save_context import in_save_context
from tensorflow.python.trackable.base import VARIABLE_VALUE_KEY, CheckpointInitialValue
from tensorflow.python.util.tf_decorator import unwrap as unwrap_decorators

__all__ = [
    "VARIABLE_VALUE_KEY",
    "CheckpointInitialValue",
    "CollectiveAllReduceExtended",
    "CommunicationOptions",
    "DistributedDataset",
    "DistributedDatasetSpec",
    "DistributedIterator",
    "DistributedIteratorSpec",
    "DistributedValues",
    "FunctionCallOptions",
    "InputWorkers",
    "Mirrored",
    "MirroredReplicaContext",
    "MirroredVariable",
    "OptionsDataset",
    "PerReplica",
    "PerReplicaSpec",
    "PrefetchDataset",
    "ResourceVariable",
    "Session",
    "SyncOnReadVariable",
    "UninitializedVariable",
    "UpdateContext",
    "WhileBodyFuncGraph",
    "add_control_input",
    "add_variable_creator",
    "auto_shard_dataset",
    "autograph_artifact",
    "canonicalize",
    "captures_dataset",
    "context",
    "convert_with_autograph",
    "dataset_inputs",
    "dataset_order",
    "dataset_tensors",
    "distributed_spec",
    "eager_mode",
    "empty_batch",
    "function_graph",
    "function_of",
    "get_distributed_datasets_from_function",
    "global_seed",
    "has_several_workers",
    "in_save_context",
    "is_compiled_by_xla",
    "is_of_running_function",
    "is_recorded",
    "place_in_function",
    "regroup",
    "replica_specs",
    "select_replica",
    "set_container",
    "shard_index",
    "unique_id",
    "unwrap_decorators",
    "update_regroup",
]


class Session(tf.compat.v1.Session):
    """A session that does not search the runtime's error messages for names of operations.

    TensorFlow searches while it holds Python's global lock. In a message of tens of kilobytes
    without such names, this takes minutes and blocks all threads.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self._callers: set[threading.Thread] = set()
        super().__init__(*args, **kwargs)

    def callers(self) -> tuple[threading.Thread, ...]:
        """Returns the threads that are in a call to the runtime."""
        return tuple(self._callers)

    def _do_call(self, fn: Callable[..., Any], *args: Any) -> Any:
        thread = threading.current_thread()
        self._callers.add(thread)
        try:
            return fn(*args)
        finally:
            self._callers.discard(thread)


# The code of the functions that `tf.recompute_grad` returns; None if TensorFlow's code has changed.
RECOMPUTE_CODE = next(
    (
        each
        for each in tf.recompute_grad.__code__.co_consts
        if isinstance(each, CodeType) and each.co_name == "inner"
    ),
    None,
)


def convert_with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function converted by AutoGraph, if AutoGraph is enabled where this is called."""
    return tf_convert(function, control_status_ctx())


def add_control_input(operation: tf.Operation, source: tf.Operation) -> None:
    """Makes an operation of a graph that is being built run only after another one."""
    operation._add_control_input(source)


def function_graph(graph: Any) -> Any:
    """Returns the graph of the function that contains a graph, such as that of a branch or loop."""
    while isinstance(graph, CondBranchFuncGraph | WhileBodyFuncGraph):
        graph = graph.outer_graph
    return graph


def is_of_running_function(value: Any) -> bool:
    """Returns whether a tensor belongs to the function being traced; in eager mode, always True.

    A nested `tf.function` would capture the tensor of one caller and use it for other callers, too.
    """
    if tf.executing_eagerly():
        return True
    graph = tf.compat.v1.get_default_graph()
    return tf.is_symbolic_tensor(value) and function_graph(graph) is function_graph(value.graph)


def place_in_function(graph: Any) -> tuple[str, int]:
    """Returns the name of the function that a graph belongs to, and the graph's depth in it.

    The depth is the number of branches and loops around the graph.
    """
    depth = 0
    while isinstance(graph, CondBranchFuncGraph | WhileBodyFuncGraph | WhileCondFuncGraph):
        graph, depth = graph.outer_graph, depth + 1
    return getattr(graph, "name", ""), depth


def has_left(graph: Any) -> bool:
    """Returns whether `graph` is a branch or loop body that the current graph is not inside of.

    The gradient of a branch is computed outside of it if the tape is outside.
    """
    if not isinstance(graph, CondBranchFuncGraph | WhileBodyFuncGraph):
        return False
    current = tf.compat.v1.get_default_graph()
    while current is not None and current is not graph:
        current = getattr(current, "outer_graph", None)
    return current is None


def add_variable_creator(creator: Callable[..., Any]) -> None:
    """Adds a variable creator to those of the current graph and thread, unless it is among them.

    It stays until the innermost enclosing `tf.variable_creator_scope` ends, and is called after the
    creators of all such scopes. A `tf.variable_creator_scope` of its own could not outlast them.
    """
    stack = tf.compat.v1.get_default_graph()._variable_creator_stack
    if all(each is not creator for _, each in stack):
        # Creators are called from the last to the first. Those of scopes have priority 100. That of
        # a `tf.function` has priority 50 and does not call the next one, so it stays the first.
        position = sum(priority < 100 for priority, _ in stack)
        stack.insert(position, (100, creator))


def dataset_inputs(dataset: Any) -> list[Any]:
    """Returns the input datasets of a dataset."""
    return list(dataset._inputs())


def iterator_components(iterator: Any) -> tuple[tf.Tensor, Any] | None:
    """Returns the resource of an iterator and its dataset; None if it has several, or none.

    Args:
      iterator: an iterator over a dataset, or a distributed one.
    """
    inner = getattr(iterator, "_iterators", [iterator])
    # Iterators that fetch to several devices are of other classes.
    if len(inner) != 1 or type(inner[0]) is not OwnedIterator:
        return None
    return inner[0]._iterator_resource, inner[0]._dataset


def may_run_generator(dataset: Any) -> bool:
    """Returns whether a dataset, not counting its inputs, may run a Python generator."""
    # A dataset that a function captured cannot be inspected.
    return captures_dataset(dataset) or any(
        node.op == "GeneratorDataset" for node in _function_nodes(dataset)
    )


def captures_dataset(dataset: Any) -> bool:
    """Returns whether a function of a dataset, such as that of `interleave`, captured a dataset."""
    captured = [each.function.captured_inputs for each in dataset._functions()]
    return any(tensor.dtype == tf.variant for inputs in captured for tensor in inputs)


def _function_nodes(dataset: Any) -> list[Any]:
    """Returns the operations of a dataset's functions, and of the functions that these call."""
    graphs = [each.function.graph.as_graph_def() for each in dataset._functions()]
    nodes = [node for graph in graphs for node in graph.node]
    called = (one for graph in graphs for one in graph.library.function)
    return nodes + [node for one in called for node in one.node_def]


def dataset_order(dataset: Any) -> tuple[list[int], bool]:
    """Returns a dataset's own seeds, and whether its order is random in spite of them."""
    own: list[Any] = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    seeds = [int(seed.numpy()) for seed in own if hasattr(seed, "numpy")]
    is_random = bool(seeds) and not any(seeds) or getattr(dataset, "_deterministic", "") == "false"
    for node in _function_nodes(dataset):
        if "seed2" in node.attr:
            pair = [node.attr["seed"].i, node.attr["seed2"].i]
            seeds += pair
            # Only operations that determine the order; others may generate random numbers.
            is_random = is_random or node.op == "RandomShuffle" and not any(pair)
        elif node.op == "Const" and node.name.startswith("seed"):
            seeds += tf.make_ndarray(node.attr["value"].tensor).reshape(-1).tolist()
        if "deterministic" in node.attr and node.attr["deterministic"].s == b"false":
            is_random = True
    return seeds, is_random


def dataset_tensors(dataset: Any) -> list[Any]:
    """Returns the tensors of `from_tensors` and `from_tensor_slices`; none for other datasets."""
    return [each for each in getattr(dataset, "_tensors", ()) if hasattr(each, "numpy")]


def shard_index(dataset: Any) -> int | None:
    """Returns the index of `Dataset.shard`; None for other datasets, or if it is not known yet."""
    if not hasattr(dataset, "_num_shards") or not hasattr(dataset._index, "numpy"):
        return None
    return int(dataset._index.numpy())


def function_of(function: Any, python_function: Callable[..., Any]) -> Any:
    """Returns a `tf.function` of another Python function, with the settings of `function`."""
    return function._clone(python_function=python_function)


def has_several_workers(strategy: Any) -> bool:
    """Returns whether a strategy of any package has several workers."""
    return strategy.extended._in_multi_worker_mode()


def replica_specs(spec: Any) -> list[Any]:
    """Returns the specs of the replicas' values; [spec] if it is not a `PerReplicaSpec`."""
    return list(spec._value_specs) if isinstance(spec, PerReplicaSpec) else [spec]


def set_container(variable: Any, container: Any) -> None:
    """Marks a variable as a component of the distributed variable `container`, with its name."""
    variable.handle._distributed_container = lambda: container
    variable._handle_name = container.name


def unique_id(variable: Any) -> str:
    """Returns the key by which tf_keras's optimizers identify a variable; "" if it has none."""
    return getattr(variable, "_unique_id", "")
