"""How gradients are reduced: one object for all strategies."""

from __future__ import annotations

from dataclasses import dataclass

_COMPRESSIONS = (None, "fp16")


@dataclass(frozen=True)
class ReductionOptions:
    """How the values of replicas are reduced; valid once built.

    >>> ReductionOptions(compression="fp16").compression
    'fp16'

    Attributes:
      bucket_bytes: values that are reduced together travel in buckets of about so many bytes,
        the last ones first: so backpropagation makes gradients, and what is ready is on its way
        while the rest is computed (PyTorch's DistributedDataParallel, arXiv 2006.15704). 0 is
        one bucket.
      compression: "fp16" sends float32 gradients (sums) as float16: half of the bytes, a
        relative error of 5e-4, and infinity above 65504. None sends them as they are.
      dense_below: gradients of rows (`IndexedSlices`) are summed by row and gathered from all
        workers; those of a table with at most so many elements are made dense, and summed.
    """

    bucket_bytes: int = 25 << 20
    compression: str | None = None
    dense_below: int = 1 << 16

    def __post_init__(self) -> None:
        for name in ("bucket_bytes", "dense_below"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(
                    f"{name} is a whole number from 0. Received: {value!r}. "
                    "Leave it out for the default."
                )
        if self.compression not in _COMPRESSIONS:
            raise ValueError(
                f"compression is one of {', '.join(map(repr, _COMPRESSIONS))}. Received: "
                f"{self.compression!r}. bfloat16 saves as much, as a policy of the model's: "
                "mixed_bfloat16."
            )
