"""Options of the reduction of gradients, for all strategies."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from strategies._tensorflow import CommunicationOptions
from strategies.checks import check_whole_number

_COMPRESSIONS = (None, "fp16")
_MODES = ("all_reduce", "reduce")


@dataclass(frozen=True)
class ReductionOptions:
    """Options of the reduction of gradients, validated on construction.

    >>> ReductionOptions(compression="fp16").compression
    'fp16'

    Attributes:
      bucket_bytes: values that are reduced together travel in buckets of about so many bytes,
        the last ones first: so backpropagation makes gradients, and what is ready is on its way
        while the rest is computed (PyTorch's DistributedDataParallel, arXiv 2006.15704). 0 is
        one bucket.
      compression: "fp16" sends float32 gradients (sums) as float16: half of the bytes, a
        relative error of 5e-4, infinity above 65504, and 0 below 3e-8: where gradients are as
        small as that, as those of a mean over a large batch may be, layers stop learning. None
        sends them as they are.
      sum_rows: gradients of rows (`IndexedSlices`) are gathered from all workers. False sends
        every row that a batch looks up, as often as it does: so an optimizer sees what it sees in
        one process. True sends each row's sum once, which is less where rows repeat, and gives
        the optimizer each row once. Linear optimizers (SGD) and tf_keras, which sums by itself,
        come to the same; Keras 3's Adam, RMSprop and their like square repeated rows one by one
        in one process, and their sum here.
      dense_below: with sum_rows, tables of at most so many elements travel whole.
      mode: "all_reduce" lets every replica update all variables. "reduce" splits the optimizer's
        state: each of N replicas holds and updates an N-th, and the variables are gathered
        afterwards (Fluid's ReduceStrategy.Reduce, ZeRO stage 1). A step moves half as much again,
        and Adam's state takes 2/N of the variables' bytes in place of 2. Optimizers that look at a
        variable as a whole (Adafactor, Lamb, Muon) work, and gather their state in every step.
        What reads that state (`save`, checkpoints) runs on all workers.
      split_above: with mode "reduce", the state of variables of more elements is split.
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
                f"compression is one of {', '.join(map(repr, _COMPRESSIONS))}. Received: "
                f"{self.compression!r}. bfloat16 saves as much, as a policy of the model's: "
                "mixed_bfloat16."
            )
        if self.mode not in _MODES:
            raise ValueError(
                f"mode is one of {', '.join(map(repr, _MODES))}. Received: {self.mode!r}. "
                "Leave it out for 'all_reduce'."
            )


def packed(reduction: ReductionOptions | None, options: CommunicationOptions) -> ReductionOptions:
    """Returns the reduction options, with buckets of `bytes_per_pack` if that is given.

    >>> packed(None, CommunicationOptions(bytes_per_pack=100)).bucket_bytes
    100

    Raises:
      ValueError: if both say how large a pack is, and not the same.
    """
    default = ReductionOptions()
    reduction = default if reduction is None else reduction
    if not options.bytes_per_pack:
        return reduction
    if reduction.bucket_bytes not in (default.bucket_bytes, options.bytes_per_pack):
        raise ValueError(
            "Gradients travel in buckets of one size. Received: "
            f"bytes_per_pack={options.bytes_per_pack} and bucket_bytes={reduction.bucket_bytes}. "
            "Leave out one."
        )
    return dataclasses.replace(reduction, bucket_bytes=options.bytes_per_pack)
