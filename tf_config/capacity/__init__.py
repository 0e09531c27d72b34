"""Capacity planning for embedding tables: memory, traffic and tasks. Does not import TensorFlow."""

from tf_config.capacity.memory import MAP_ENTRY, Memory
from tf_config.capacity.plan import CapacityPlan, format_bytes, plan_capacity
from tf_config.capacity.table import PlannedTable
from tf_config.capacity.traffic import KEY_BYTES, Traffic

__all__ = [
    "KEY_BYTES",
    "MAP_ENTRY",
    "CapacityPlan",
    "Memory",
    "PlannedTable",
    "Traffic",
    "plan_capacity",
    "format_bytes",
]
