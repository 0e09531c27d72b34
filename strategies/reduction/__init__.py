"""How values of several replicas become one."""

from strategies.reduction.cross_device_ops import ReplicaCrossDeviceOps

__all__ = ["ReplicaCrossDeviceOps"]
