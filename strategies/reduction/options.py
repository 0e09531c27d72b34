"""Options for the reduction of gradients, for all strategies."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from strategies.compat.tensorflow import CommunicationOptions
from strategies.utils.argument_checks import check_whole_number

_COMPRESSIONS = (None, "fp16")
_MODES = ("all_reduce", "reduce")


@dataclass(frozen=True)
class ReductionOptions:
    """Options for the reduction of gradients, validated on construction.

    >>> ReductionOptions(compression="fp16").compression
    'fp16'

    Attributes:
      bucket_bytes: approximate size in bytes of the buckets in which gradients are all-reduced.
        Buckets start with the last gradients, which backpropagation computes first, so that a
        bucket is sent while the remaining gradients are computed (PyTorch's
        DistributedDataParallel, arXiv 2006.15704). 0 uses a single bucket.
      compression: "fp16" sends float32 gradients (sums) as float16, divided by the number N of
        replicas, and multiplies the sum by N. This halves the bytes, with a relative error of 5e-4.
        A worker's mean gradient per replica above 65504 becomes infinite; a gradient below N * 3e-8
        becomes 0, and below N * 6e-5 its error is larger. Layers with gradients this small, which
        can result from a mean over a large batch, stop learning. None sends gradients uncompressed.
      sum_rows: whether to sum the gradients of repeated rows (`IndexedSlices`) before they are
        gathered from all workers. False sends a row for each lookup in the batch, so the optimizer
        sees the same gradient as in one process. True sends each row once, which is less data if
        rows repeat, and the optimizer sees each row once. The result is the same with linear
        optimizers (SGD) and with tf_keras, which sums repeated rows itself. It differs with Keras
        3's Adam, RMSprop and similar ones, which in one process square repeated rows one by one;
        here, they square the sum.
      dense_below: with `sum_rows`, gradients of tables of at most this many elements are
        all-reduced as dense tensors.
      mode: "all_reduce" lets every replica update all variables. "reduce" shards the optimizer
        state: each of N replicas stores and updates one N-th, and the variables are gathered
        afterwards (Fluid's ReduceStrategy.Reduce, ZeRO stage 1). A step sends 1.5 times the data,
        and Adam's state takes 2/N times the variables' bytes instead of 2 times. Optimizers that
        use a variable as a whole (Adafactor, Lamb, Muon) also work, but gather their state in every
        step. Operations that read the state (`save`, checkpoints) must run on all workers.
      split_above: with mode "reduce", the optimizer state of variables with more elements than
        this is sharded.
    """

    bucket_bytes: int = 25 << 20
    compression: str | None = None
    sum_rows: bool = False
    dense_below: int = 1 << 16
    mode: str = "all_reduce"
    split_above: int = 8192

    def __post_init__(self) -> None:
        for name in ("bucket_bytes", "dense_below", "split_above"):
            check_whole_number(name, getattr(self, name), 0, "Leave it out for the default.")
        if self.compression not in _COMPRESSIONS:
            raise ValueError(
                f"compression must be one of {', '.join(map(repr, _COMPRESSIONS))}. Received: "
                f"{self.compression!r}. To use bfloat16, set the model's dtype policy to "
                "'mixed_bfloat16', which also halves the bytes."
            )
        if self.mode not in _MODES:
            raise ValueError(
                f"mode must be one of {', '.join(map(repr, _MODES))}. Received: {self.mode!r}. "
                "Omit it for 'all_reduce'."
            )


def with_bucket_bytes(
    reduction: ReductionOptions | None, options: CommunicationOptions
) -> ReductionOptions:
    """Returns the reduction options, with buckets of `bytes_per_pack` bytes if that is set.

    >>> with_bucket_bytes(None, CommunicationOptions(bytes_per_pack=100)).bucket_bytes
    100

    Raises:
      ValueError: if `bytes_per_pack` and `bucket_bytes` are both set and differ.
    """
    default = ReductionOptions()
    reduction = default if reduction is None else reduction
    if not options.bytes_per_pack:
        return reduction
    if reduction.bucket_bytes not in (default.bucket_bytes, options.bytes_per_pack):
        raise ValueError(
            "bytes_per_pack and bucket_bytes cannot be combined. Received: "
            f"bytes_per_pack={options.bytes_per_pack} and bucket_bytes={reduction.bucket_bytes}. "
            "Omit one of them."
        )
    return dataclasses.replace(reduction, bucket_bytes=options.bytes_per_pack)
