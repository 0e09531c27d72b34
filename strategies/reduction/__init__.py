"""How values of several replicas become one."""

from strategies.reduction.cross_device_ops import WorkerCrossDeviceOps

__all__ = ["WorkerCrossDeviceOps"]
