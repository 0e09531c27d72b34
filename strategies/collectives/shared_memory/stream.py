"""A stream of operations on NumPy arrays, which TensorFlow functions start and wait for.

Operations run in program order, which is the same on all workers, so nothing has to be negotiated.
In a function, an operation runs in one of two ways:

* In the TensorFlow thread that reaches it. That is fastest, because no other thread has to wake up.
  But the thread blocks until the other workers arrive; if TensorFlow has a single thread, nothing
  else is computed in the meantime. So only one stream of a process can be of this kind: with two,
  one worker could block in the first stream and another worker in the second.
* In a thread of the stream, which receives the tensors and returns the results through TensorFlow
  queues. So no TensorFlow thread blocks.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives.ordered_calls import OrderedCalls
from strategies.collectives.shared_memory.buffers import ALIGNMENT
from strategies.compat.tensorflow import ResourceVariable, eager_mode
from strategies.utils.devices import HOST

Operation = Callable[[list[np.ndarray], str], list[np.ndarray]]

_CAPACITY = 1 << 20
_NO_ERROR = np.array(b"", object)  # TensorFlow converts text that is not bytes slowly
_SECONDS_TO_END = 1.0  # an operation that waits for another worker may never end


class Stream:
    """Runs operations one after the other, in program order.

    Args:
      has_thread: whether operations in functions run in a thread of the stream. At most one stream
        of a process may have none.
    """

    def __init__(self, has_thread: bool = True) -> None:
        self._has_thread = has_thread
        self._lock = threading.Lock()
        self._functions: _InCalls | _InThread | None = None

    def run(
        self, operation: Operation, tensors: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """Runs an operation after all operations before it; returns its results.

        Args:
          operation: takes the tensors' values and a text that distinguishes this run from others;
            returns arrays.
          tensors: tensors of dtypes that NumPy has.
          dtypes: the dtypes of the results.
        """
        if tf.executing_eagerly():
            # Operations in functions hold it, too: one of them may still be running.
            with self._lock:
                return _tensors(operation(_arrays(tensors), ""))
        if self._functions is None:
            self._functions = (_InThread if self._has_thread else _InCalls)(self._lock)
        return self._functions.run(operation, tensors, dtypes)


class _Executions:
    """Numbers the executions of functions.

    If an execution fails at a different operation on each worker, the number distinguishes its
    remaining operations from those of the next execution.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device(HOST):
            self._count = ResourceVariable(0, dtype=tf.int64, trainable=False)
        self._numbers: MutableMapping[tf.Graph, tf.Tensor] = weakref.WeakKeyDictionary()

    def number(self) -> tf.Tensor:
        """Returns a tensor with the number of the execution, in the function being traced."""
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._numbers:
            # Without control dependencies, so that a step that fails before its first exchange is
            # counted, too.
            with tf.control_dependencies(None):
                self._numbers[graph] = self._count.assign_add(1)
        return self._numbers[graph]


class _InCalls:
    """Runs the operations of functions in the TensorFlow thread that reaches them.

    Args:
      lock: held while an operation runs.
    """

    def __init__(self, lock: threading.Lock):
        self._lock = lock
        self._calls = OrderedCalls()
        self._executions = _Executions()

    def run(
        self, operation: Operation, tensors: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """Adds an operation to the function being traced; see `Stream.run`."""

        def call(execution: np.ndarray, *arrays: np.ndarray) -> list[Any]:
            try:
                with self._lock:
                    return [*operation(list(arrays), _moment(execution)), _NO_ERROR]
            except Exception as failure:  # returned, because TensorFlow would add a traceback
                empty = [np.zeros([], dtype.as_numpy_dtype) for dtype in dtypes]
                return [*empty, np.array(str(failure).encode(), object)]

        arguments = [self._executions.number(), *tensors]
        *results, error = self._calls.call(call, arguments, [*dtypes, tf.string])
        return _raise_on_error(results, error)


class _InThread:
    """Runs the operations of functions in a thread, which ends with this object.

    The queues are resources, and TensorFlow keeps operations that write to the same resource in
    order, also in branches and loops. A function can fail after any of its operations; tickets
    identify the entries that it left behind in a queue.

    Args:
      lock: held while an operation runs.
    """

    def __init__(self, lock: threading.Lock):
        self._calls: list[_Call] = []
        with tf.init_scope(), tf.device(HOST):
            self._order = tf.queue.FIFOQueue(_CAPACITY, [tf.int32, tf.int64], [(), ()])
            self._tickets = ResourceVariable(0, dtype=tf.int64, trainable=False)
        self._executions = _Executions()
        arguments = (self._order, self._calls, lock)
        thread = threading.Thread(target=_serve, args=arguments, name="collectives", daemon=True)
        thread.start()
        # Runs at exit, too; see [Note: the end of the interpreter] in utils/background_thread.py.
        weakref.finalize(self, _stop, self._order, thread)

    def run(
        self, operation: Operation, tensors: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """Adds an operation to the function being traced; see `Stream.run`."""
        call = _Call(operation, [tensor.dtype for tensor in tensors], dtypes)
        number = len(self._calls)
        self._calls.append(call)
        execution = self._executions.number()
        # The ticket orders the runs of all calls, see [Note: whose turn it is] in ../base.py. The
        # request is enqueued before it is announced, so that the thread never waits for a request
        # of a function that failed in between; `serve` skips a request that was not announced.
        ticket = self._tickets.assign_add(1)
        with tf.control_dependencies([call.request(ticket, execution, tensors)]):
            announced = self._order.enqueue([number, ticket])
        with tf.control_dependencies([announced]):
            return call.results(ticket)


class _Call:
    """A place in a function at which an operation runs, with the queues to and from it."""

    def __init__(
        self, operation: Operation, sent: Sequence[tf.DType], received: Sequence[tf.DType]
    ):
        self._operation = operation
        self._received = received
        with tf.init_scope(), tf.device(HOST):
            self._requests = tf.queue.FIFOQueue(_CAPACITY, [tf.int64, tf.int64, *sent])
            self._results = tf.queue.FIFOQueue(_CAPACITY, [tf.int64, tf.string, *received])
            self._no_error = tf.constant("")

    def request(
        self, ticket: tf.Tensor, execution: tf.Tensor, tensors: Sequence[tf.Tensor]
    ) -> tf.Operation:
        """Enqueues the tensors of one run."""
        return self._requests.enqueue([ticket, execution, *tensors])

    def results(self, ticket: tf.Tensor) -> list[tf.Tensor]:
        """Dequeues the results of a run; fails if the run failed, or if they are of another run."""
        received, error, *results = self._results.dequeue()
        is_same_run = tf.debugging.Assert(
            tf.equal(received, ticket),
            [
                "Training cannot continue after a step that failed while workers exchanged values, "
                "because the workers may be at different places in the program. Restart the job "
                "from its last checkpoint."
            ],
        )
        with tf.control_dependencies([is_same_run]):
            return _raise_on_error(results, error)

    def serve(self, ticket: int) -> None:
        """Runs the operation on the tensors of a run; skips runs that were never announced."""
        received, execution, *tensors = self._take_request()
        while int(received) != ticket:
            received, execution, *tensors = self._take_request()
        try:
            results = _tensors(self._operation(_arrays(tensors), _moment(execution)))
            error = self._no_error
        except Exception as failure:  # raised again where the function dequeues the results
            results = [tf.zeros([], dtype) for dtype in self._received]
            error = tf.constant(str(failure))
        tf.raw_ops.QueueEnqueueV2(
            handle=self._results.queue_ref, components=[received, error, *results]
        )

    def _take_request(self) -> list[tf.Tensor]:
        return tf.raw_ops.QueueDequeueV2(
            handle=self._requests.queue_ref, component_types=self._requests.dtypes
        )


def _moment(execution: Any) -> str:
    return f"in execution {int(execution)}: "


def _raise_on_error(results: Sequence[tf.Tensor], error: tf.Tensor) -> list[tf.Tensor]:
    """Returns the results; if `error` is not empty, the function fails with it as the message."""
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(error, ""), [error])]):
        return [tf.identity(result) for result in results]


def _arrays(tensors: Sequence[tf.Tensor]) -> list[np.ndarray]:
    """Returns tensors' values without a copy."""
    return [np.asarray(memoryview(tensor)) for tensor in tensors]


def _tensors(arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
    """Converts arrays that are not written to again to tensors; without a copy if aligned.

    TensorFlow aborts the process if it uses an array without a copy that is not aligned.
    """
    return [
        tf.convert_to_tensor(array)
        if array.ctypes.data % ALIGNMENT
        else tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        for array in arrays
    ]


def _serve(order: tf.queue.QueueBase, calls: Sequence[_Call], lock: threading.Lock) -> None:
    while True:
        try:
            number, ticket = (int(value) for value in order.dequeue())
        except (tf.errors.OutOfRangeError, tf.errors.CancelledError):  # it is closed
            return
        with lock:
            calls[number].serve(ticket)


def _stop(order: tf.queue.QueueBase, thread: threading.Thread) -> None:
    # The garbage collector may call this while a graph is being built; without eager mode, the
    # operation would be added to that graph.
    with eager_mode():
        order.close(cancel_pending_enqueues=True)
    if thread is not threading.current_thread():
        thread.join(_SECONDS_TO_END)
