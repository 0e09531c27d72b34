"""Which operations of a program could not run on a GPU, as TensorFlow's wheel tells without one.

The wheel registers its GPU kernels where there is no GPU, too. So each node of each function that a
program has traced can be looked up: by its operation and by the types that a kernel is for. Kernels
that exist and refuse at run time are not found so.

Replicas have to be on other devices than CPU:0: a node on CPU:0 is one that the package has pinned
to the host, and any other one would be on a GPU if there was one.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels, op_def_registry

# What runs on GPUs: its own kernels, and those that are for any device.
_ON_GPUS = frozenset(["GPU", "DEFAULT"])
# Nodes of a function's graph that compute nothing.
_NO_OPERATIONS = frozenset(["NoOp", "Placeholder", "_Arg", "_Retval"])
# The names of the functions in which Keras and tf_keras run a step or several.
_STEP = re.compile(r"__inference_\w*(step|train_function|test_function|predict_function)")
_DEVICE = re.compile(r"(?:/job:(?P<job>\w+))?.*?device:(?P<kind>CPU|GPU):(?P<number>\d+)", re.I)


class Operation(NamedTuple):
    """An operation and the types of one of its nodes, such as `SplitV[T=int64,Tlen=int32]`."""

    name: str
    types: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        types = ",".join(f"{name}={each}" for name, each in self.types)
        return f"{self.name}[{types}]"


def functions() -> set[str]:
    """Returns the names of all functions that this process has traced until now."""
    names = context.context().list_function_names()
    return {name.decode() if isinstance(name, bytes) else name for name in names}


def without_gpu_kernel(names: Iterable[str]) -> Counter[Operation]:
    """Returns the operations of functions that are not pinned to the host and have no GPU kernel.

    Args:
      names: of the functions. Of these, the steps of Keras count, and what they call on replicas;
        tf.data runs on the host, and servers have functions of their own.
    """
    return Counter(
        _operation(node)
        for definition in _on_replicas(_definitions(names)).values()
        for node in definition.node_def
        if not _is_on_host(node) and _is_known(node) and not has_gpu_kernel(node)
    )


def has_gpu_kernel(node: tf.compat.v1.NodeDef) -> bool:
    """Returns whether a GPU kernel takes the types of a node."""
    return any(_takes(kernel, node) for kernel in _gpu_kernels(node.op))


@functools.cache
def _gpu_kernels(operation: str) -> list:
    registered = kernels.get_registered_kernels_for_op(operation).kernel
    return [each for each in registered if each.device_type in _ON_GPUS and not each.label]


def _takes(kernel: object, node: tf.compat.v1.NodeDef) -> bool:
    return all(
        set(_types(node, constraint.name)) <= set(constraint.allowed_values.list.type)
        for constraint in kernel.constraint
        if constraint.allowed_values.list.type
    )


def _types(node: tf.compat.v1.NodeDef, name: str) -> list[int]:
    """Returns the types that an attribute of a node names; none if it names no types."""
    if name in node.attr:
        value = node.attr[name]
    else:
        (value,) = (
            attr.default_value for attr in op_def_registry.get(node.op).attr if attr.name == name
        )
    return [value.type] if value.WhichOneof("value") == "type" else list(value.list.type)


def _operation(node: tf.compat.v1.NodeDef) -> Operation:
    names = [
        attr.name
        for attr in op_def_registry.get(node.op).attr
        if attr.type in ("type", "list(type)")
    ]
    types = {name: dict.fromkeys(map(_type_name, _types(node, name))) for name in names}
    return Operation(node.op, tuple((name, " ".join(each)) for name, each in types.items()))


def _type_name(number: int) -> str:
    return types_pb2.DataType.Name(number).removeprefix("DT_").lower()


def _is_known(node: tf.compat.v1.NodeDef) -> bool:
    """Returns whether a node is an operation; calls of functions have the function's name."""
    return node.op not in _NO_OPERATIONS and op_def_registry.get(node.op) is not None


def _is_on_host(node: tf.compat.v1.NodeDef) -> bool:
    found = _DEVICE.search(node.device)
    if found is None:
        return False
    return found["job"] == "ps" or (found["kind"].upper(), found["number"]) == ("CPU", "0")


def _definitions(names: Iterable[str]) -> dict[str, object]:
    """Returns the functions that there are still: those of a dataset end with it, in a thread."""
    found = {}
    for name in names:
        with contextlib.suppress(tf.errors.NotFoundError):
            found[name] = context.context().get_function_def(name)
    return found


def _on_replicas(definitions: dict[str, object]) -> dict[str, object]:
    """Returns the functions of Keras's steps, and those that they call on replicas.

    Raises:
      ValueError: if there is no step, as if Keras gave its functions other names: nothing would be
        looked at.
    """
    found = {}
    following = [name for name in definitions if _STEP.search(name)]
    if not following:
        raise ValueError(f"There must be a function of a step. Received: {sorted(definitions)}")
    while following:
        name = following.pop()
        if name in definitions and name not in found:
            found[name] = definitions[name]
            for node in found[name].node_def:
                if not _is_on_host(node):
                    following.extend(_called(node))
    return found


def _called(node: tf.compat.v1.NodeDef) -> Iterator[str]:
    yield node.op
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            yield value.func.name
        for function in value.list.func:
            yield function.name


class Copy(NamedTuple):
    """A tensor that a step copies between the host and the devices of replicas.

    Attributes:
      to_host: whether it goes to the host; otherwise it comes from there.
      type: the dtype's name.
      of: the node that makes it.
    """

    to_host: bool
    type: str
    of: str


def copies(names: Iterable[str]) -> Counter[Copy]:
    """Returns what functions copy between the host and replicas, if these are on GPUs.

    A tensor for several operations is copied once. What a GPU kernel takes from the memory of the
    host, such as shapes, is not copied, and neither are variables, of which there are only names.
    """
    found: set[tuple[str, str, bool]] = set()
    types: dict[tuple[str, str], str] = {}
    for name, definition in _on_replicas(_definitions(names)).items():
        nodes = {node.name: node for node in definition.node_def}
        for node in definition.node_def:
            if not _is_known(node):
                continue
            inputs = [each for each in node.input if not each.startswith("^")]
            for each, argument in zip(inputs, _arguments(node, "input_arg"), strict=False):
                producer = nodes.get(each.partition(":")[0])
                if producer is None or not _is_known(producer):
                    continue
                to_host = _is_on_host(node)
                if to_host == _is_on_host(producer):
                    continue
                _, output, number = each.split(":")
                kind = _type_of(producer, output, int(number))
                on_gpu, side = (producer, output) if to_host else (node, argument)
                if kind in ("resource", "variant") or side in _host_arguments(on_gpu):
                    continue
                found.add((name, each, to_host))
                types[name, each] = kind
    return Counter(
        Copy(to_host, types[name, each], each.partition(":")[0]) for name, each, to_host in found
    )


def _host_arguments(node: tf.compat.v1.NodeDef) -> set[str]:
    """Returns the arguments that the node's GPU kernel has in the memory of the host."""
    fitting = [kernel for kernel in _gpu_kernels(node.op) if _takes(kernel, node)]
    of_gpus = [kernel for kernel in fitting if kernel.device_type == "GPU"] or fitting
    return {*of_gpus[0].host_memory_arg} if of_gpus else set()


def _arguments(node: tf.compat.v1.NodeDef, kind: str) -> Iterator[str]:
    """Returns the name of the argument that each tensor of a node belongs to."""
    for argument in getattr(op_def_registry.get(node.op), kind):
        number = 1
        if argument.number_attr:
            number = node.attr[argument.number_attr].i
        elif argument.type_list_attr:
            number = len(node.attr[argument.type_list_attr].list.type)
        yield from [argument.name] * number


def _type_of(node: tf.compat.v1.NodeDef, output: str, number: int) -> str:
    for argument in op_def_registry.get(node.op).output_arg:
        if argument.name == output:
            if argument.type_list_attr:
                return _type_name(_types(node, argument.type_list_attr)[number])
            return _type_name(
                _types(node, argument.type_attr)[0] if argument.type_attr else argument.type
            )
    raise ValueError(f"{node.op} has no output {output}")
