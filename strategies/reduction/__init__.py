"""Reduction of values across replicas and workers."""

from strategies.reduction.cross_device_ops import ReplicaCrossDeviceOps
from strategies.reduction.options import ReductionOptions

__all__ = ["ReductionOptions", "ReplicaCrossDeviceOps"]
