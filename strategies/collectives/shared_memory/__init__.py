"""Collectives among the workers of one host, through memory that they share."""

from strategies.collectives.shared_memory.collectives import SharedMemoryCollectives

__all__ = ["SharedMemoryCollectives"]
