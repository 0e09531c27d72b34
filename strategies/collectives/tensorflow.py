"""Collectives over TensorFlow's own operations, for when Horovod cannot be built.

They use TensorFlow's ring algorithms over gRPC between CPUs, and NCCL for sums between GPUs.
TensorFlow matches the workers' parts of an operation by two keys, group and instance. Here the
group key identifies the kind and dtype of the operation, and the instance key is the number of
values. So a key always has the same shape, as TensorFlow requires, and can be reused; for each new
key, TensorFlow asks the first worker and keeps a kilobyte forever. So vectors whose lengths differ
from step to step are padded to one of few lengths. Tested with TensorFlow 2.21.0.

What an operation takes on a slow network is the number of times that one worker waits for another:
of N workers, a gather takes N - 1, because vectors go round a ring, a sum twice as many, and an
all-to-all a single one, because it has no ring.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives.base import RowCounts, StreamKeeper
from strategies.collectives.dtypes import (
    all_reduce_as_vector,
    all_reduce_by_dtype,
    bytes_of,
    element_bytes,
    from_bytes,
    reshape_like,
    to_bytes,
    to_words,
)
from strategies.collectives.registry import Backend, register
from strategies.collectives.startup.grpc_server import join
from strategies.compat.tensorflow import CommunicationOptions, ResourceVariable
from strategies.utils.devices import HOST
from tf_config import ClusterSpec, Task

_Implementation = tf.distribute.experimental.CommunicationImplementation
# The kinds of operations and their dtypes, each with its own group.
_KINDS = (
    *(("sum", dtype) for dtype in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)),
    ("gather", tf.int32),
    ("all_to_all", tf.int32),
)

# The first group key within a process, and the highest number of workers with distinct keys.
_IN_PROCESS, _WORKERS = 1 << 20, 1 << 10

# The lengths of padded vectors, in ascending order. From 16 on, each exceeds the one before it by
# at most a sixteenth.
_LENGTHS = sorted({(16 + part) << octave >> 4 for octave in range(48) for part in range(16)})

# A sum that is at most as many bytes per other worker is made by each worker of all vectors.
_GATHERED_BYTES = 1 << 16

# A stream is a sequence of operations. All workers create their streams in the same order.
_stream_numbers = itertools.count()
# The collectives that this process has started.
_started: dict[tuple[Any, ...], TensorFlowCollectives] = {}


class TensorFlowCollectives(StreamKeeper):
    """Collectives among all workers of a cluster over TensorFlow; created by `start`.

    An operation begins when the previous one has ended on this worker, also in functions: each
    operation takes a variable's handle, and TensorFlow runs operations on the same variable in
    order.

    Args:
      rank: this worker's rank, from 0.
      size: the number of workers.
      device: this worker's first device; floats are summed there if it is a GPU.
      options: TensorFlow's implementation, and the timeout of an operation.
      first_group: the first of the group keys of these operations; None is the next free one.
      at_device: whether all operations run on the device, even those on the host's values.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        device: str,
        options: CommunicationOptions,
        first_group: int | None = None,
        at_device: bool = False,
    ):
        super().__init__()
        self.rank = rank
        self.size = size
        self._device = device
        self._options = options
        self._at_device = at_device
        if first_group is None:
            first_group = 1 + next(_stream_numbers) * len(_KINDS)
        self._first_group = first_group
        self._tokens: dict[str, ResourceVariable] = {}

    @classmethod
    def start(
        cls,
        cluster: ClusterSpec,
        task: Task,
        timeout: float,
        device: str,
        options: CommunicationOptions,
    ) -> TensorFlowCollectives:
        """Waits for all workers and joins them; called again, returns the same collectives.

        Args:
          cluster: the workers, in the order of their ranks.
          task: the task of this process.
          timeout: the number of seconds to wait for the other workers.
          device: this worker's first device.
          options: TensorFlow's implementation, and the timeout of an operation.

        Raises:
          TimeoutError: if a worker does not arrive in time; the message names it.
          ClusterConfigError: if this worker's port is taken, or the workers' clusters differ.
          RuntimeError: if TensorFlow has already created tensors or joined another job.
        """
        join(cluster, task, timeout)
        key = (device, options.implementation, options.timeout_seconds)
        if key not in _started:
            tasks = cluster.training_tasks
            _started[key] = cls(tasks.index(task), len(tasks), device, options)
        return _started[key]

    @classmethod
    def within_process(cls, devices: Sequence[str], rank: int) -> list[TensorFlowCollectives]:
        """Returns collectives among the replicas of this process, one object per replica.

        Args:
          devices: the replicas' devices, all different.
          rank: this worker's rank, which makes the group keys of different workers differ.
        """
        group = _IN_PROCESS + (next(_stream_numbers) * _WORKERS + rank) * len(_KINDS)
        options = CommunicationOptions()
        return [
            cls(replica, len(devices), device, options, group, at_device=True)
            for replica, device in enumerate(devices)
        ]

    def _make_stream(self) -> TensorFlowCollectives:
        return TensorFlowCollectives(self.rank, self.size, HOST, self._options)

    def subset(self, ranks: Sequence[int]) -> TensorFlowCollectives | None:
        """Returns collectives among some of the workers; see `NetworkCollectives`."""
        first_group = 1 + next(_stream_numbers) * len(_KINDS)
        if self.rank not in ranks:
            return None
        rank = ranks.index(self.rank)
        return TensorFlowCollectives(rank, len(ranks), self._device, self._options, first_group)

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers; see `Collectives`."""
        return all_reduce_by_dtype(
            tensors, lambda group, _: all_reduce_as_vector(group, self._all_reduce_vector)
        )

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors concatenated along axis 0; see `Collectives`."""
        with self._device_of_words():
            own = tf.stack([tf.shape(tensor, tf.int64)[0], bytes_of(tensor)])
            rows, lengths = tf.unstack(
                tf.reshape(self._all_gather_vector(own), [self.size, 2]), axis=1
            )
            contents = self._all_gather_bytes(tensor, lengths)
            parts = [contents[rank, : lengths[rank]] for rank in range(self.size)]
            return _rows_from_bytes(parts, tf.reduce_sum(rows), tensor)

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        """Returns the rows that the workers sent to this one; see `Collectives`."""
        with self._device_of_words():
            known = known or self._agree_on_counts(counts)
            # All workers pad to the same number of rows; four of them are words without a rest.
            rows = 4 * tf.cast(_padded_length((tf.cast(known.most, tf.int64) + 3) // 4), tf.int32)
            sent = _to_blocks(tensor, tf.ensure_shape(counts, [self.size]), rows)
            received = self._run_collective("all_to_all", sent)
            of_workers = tf.ensure_shape(known.received, [self.size])
            return _from_blocks(received, of_workers, rows, tensor), known

    def _agree_on_counts(self, counts: tf.Tensor) -> RowCounts:
        """Returns what all workers' counts are for this one."""
        sent = tf.reshape(self._all_gather_vector(tf.cast(counts, tf.int32)), [self.size] * 2)
        return RowCounts(tf.cast(sent[:, self.rank], counts.dtype), tf.reduce_max(sent))

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor; see `Collectives`."""
        with self._device_of_words():
            words = to_words(tensor)
            # A broadcast is a sum with zeros, which does not change a bit, so that it needs no
            # group of its own.
            content = to_bytes(
                self._all_reduce_vector(words if self.rank == 0 else tf.zeros_like(words))
            )
            return reshape_like(tensor, from_bytes(content[: bytes_of(tensor)], tensor.dtype))

    def _device_of_words(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a scope of the device on which words are exchanged: the host, even with GPUs.

        Kernels for GPUs keep int32 values in the host's memory or on the GPU, depending on the
        operation, so each step of the conversion to words could copy them.
        """
        return contextlib.nullcontext() if self._at_device else tf.device(HOST)

    def _all_gather_bytes(self, tensor: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Returns the bytes of all workers' tensors, [size, n], padded with zeros.

        Args:
          tensor: this worker's tensor.
          lengths: [size], the number of bytes of each worker's tensor.
        """
        words = to_words(tensor)
        # TensorFlow can only gather vectors of equal length, and the instance key is the length. So
        # all workers pad to the same length, which gives them the same key.
        length = _padded_length((tf.reduce_max(lengths) + 3) // 4)
        words = tf.pad(words, [[0, length - tf.size(words, tf.int64)]])
        return to_bytes(tf.reshape(self._all_gather_vector(words), [self.size, -1]))

    def _all_reduce_vector(self, vector: tf.Tensor) -> tf.Tensor:
        def sum_in_ring() -> tf.Tensor:
            return self._run_collective("sum", vector, merge_op="Add", final_op="Id")

        def sum_gathered() -> tf.Tensor:
            with tf.device(HOST):
                gathered = tf.reshape(self._all_gather_vector(vector), [self.size, -1])
                return tf.add_n(tf.unstack(gathered))

        if self._at_device or self._placement("sum", vector.dtype)[1] != "ring":
            return sum_in_ring()
        largest = _GATHERED_BYTES // (vector.dtype.size * max(self.size - 1, 1))
        length = vector.shape[0]
        if length is not None:
            return sum_gathered() if 0 < length <= largest else sum_in_ring()
        # Another worker may have traced the function for a known length, so the rule is the same.
        with tf.device(HOST):
            is_short = (tf.size(vector) > 0) & (tf.size(vector) <= largest)
        return tf.cond(is_short, sum_gathered, sum_in_ring)

    def _all_gather_vector(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns the workers' vectors, all of one length, concatenated by rank."""
        if vector.dtype == tf.int32:
            return self._run_collective("gather", vector)
        words = tf.reshape(self._all_gather_vector(to_words(vector)), [self.size, -1])
        content = to_bytes(words)[:, : bytes_of(vector)]
        return from_bytes(tf.reshape(content, [-1]), vector.dtype)

    def _run_collective(self, kind: str, vector: tf.Tensor, **attributes: Any) -> tf.Tensor:
        """Runs a collective operation of TensorFlow on tensors of one dtype and shape.

        Args:
          kind: one of `_KINDS`.
          vector: a vector; for "all_to_all", one vector for each worker, [size, n], with n > 0.
          **attributes: further attributes of the operation.
        """
        operation = {
            "sum": tf.raw_ops.CollectiveReduceV2,
            "gather": tf.raw_ops.CollectiveGatherV2,
            "all_to_all": tf.raw_ops.CollectiveAllToAllV2,
        }[kind]
        device, hint = self._placement(kind, vector.dtype)
        sent = vector if vector.shape[0] else _pad_if_empty(vector)
        with tf.device(HOST):
            instance = tf.size(sent)
        with tf.device(device):
            result = operation(
                input=sent,
                group_size=self.size,
                group_key=self._first_group + _KINDS.index((kind, vector.dtype)),
                instance_key=instance,
                ordering_token=[self._token(device).handle],  # [Note: whose turn it is] in base.py
                communication_hint=hint,
                timeout_seconds=self._options.timeout_seconds or 0.0,
                **attributes,
            )
        return result if sent is vector else result[: tf.size(result) * tf.sign(tf.size(vector))]

    def _placement(self, kind: str, dtype: tf.DType) -> tuple[str, str]:
        """Returns the device that an operation runs on, and TensorFlow's communication hint."""
        if self._at_device:
            return self._device, "nccl" if "GPU" in self._device else "ring"
        on_gpu = "GPU" in self._device and self._options.implementation != _Implementation.RING
        if on_gpu and kind == "sum" and dtype.is_floating:
            return self._device, "nccl"
        return HOST, "ring"

    def _token(self, device: str) -> ResourceVariable:
        if device not in self._tokens:
            with tf.init_scope(), tf.device(device):
                self._tokens[device] = ResourceVariable(0.0, trainable=False)
        return self._tokens[device]


# The last one in order of preference: it has no obstacle, because it is part of TensorFlow.
register(
    Backend(
        "tensorflow", "TensorFlow's collectives", 9, lambda device, options: "",
        TensorFlowCollectives.start,
    )
)  # fmt: skip


def _padded_length(length: tf.Tensor) -> tf.Tensor:
    """Returns the smallest of `_LENGTHS` that is at least an int64 length; 0 for 0."""
    lengths = tf.constant(_LENGTHS, tf.int64)
    found = tf.gather(lengths, tf.searchsorted(lengths, tf.reshape(length, [1])))[0]
    return tf.where(length > 0, found, 0)


def _to_blocks(tensor: tf.Tensor, counts: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the rows for each worker as words, int32 [size, n], padded with zeros.

    Args:
      tensor: the rows, ordered by worker.
      counts: [size], their number for each worker.
      rows: int32, the number of rows to which each worker's are padded; a multiple of four.
    """
    count, size = tf.shape(tensor)[0], counts.shape[0]
    content = tf.reshape(
        to_bytes(to_words(tensor))[: bytes_of(tensor)], [count, _row_bytes(tensor)]
    )
    content = tf.pad(content, [[0, 1], [0, 0]])
    counts = tf.cast(counts, tf.int32)[:, tf.newaxis]
    numbers = tf.range(rows)
    positions = tf.where(numbers < counts, tf.cumsum(counts, exclusive=True) + numbers, count)
    words = tf.reshape(tf.gather(content, positions), [size, rows // 4 * _row_bytes(tensor), 4])
    words = tf.bitcast(words, tf.int32)
    # TensorFlow crashes on empty tensors.
    return tf.pad(words, [[0, 0], [0, tf.cast(tf.equal(tf.size(words), 0), tf.int32)]])


def _from_blocks(
    words: tf.Tensor, counts: tf.Tensor, rows: tf.Tensor, like: tf.Tensor
) -> tf.Tensor:
    """Returns the rows of `_to_blocks` that the workers have sent, without the padding.

    Args:
      words: the words from each worker.
      counts: [size], the number of rows from each worker.
      rows: see `_to_blocks`.
      like: a tensor of the same dtype and inner shape.
    """
    row, size = _row_bytes(like), counts.shape[0]
    content = tf.reshape(to_bytes(words[:, : rows // 4 * row]), [size, rows, row])
    is_sent = tf.range(rows) < tf.cast(counts, tf.int32)[:, tf.newaxis]
    received = tf.reshape(tf.boolean_mask(content, is_sent), [-1])
    return _rows_from_bytes([received], tf.reduce_sum(tf.cast(counts, tf.int64)), like)


def _row_bytes(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the number of bytes of a row, int32."""
    return tf.reduce_prod(tf.shape(tensor)[1:]) * element_bytes(tensor.dtype)


def _rows_from_bytes(parts: Sequence[tf.Tensor], rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns the rows that bytes represent, with the dtype and the inner shape of `like`."""
    values = from_bytes(tf.concat(parts, 0), like.dtype)
    shape = tf.concat([[rows], tf.shape(like, tf.int64)[1:]], 0)
    return tf.ensure_shape(tf.reshape(values, shape), [None, *like.shape[1:]])


def _pad_if_empty(vector: tf.Tensor) -> tf.Tensor:
    """Pads an empty vector with one zero: TensorFlow's ring algorithm crashes on empty tensors."""
    return tf.pad(vector, [[0, tf.cast(tf.equal(tf.size(vector), 0), tf.int32)]])
