"""Collectives among the workers of one host, through shared memory."""

from strategies.collectives.shared_memory.collectives import SharedMemoryCollectives
from strategies.collectives.shared_memory.host import Host, WorkerEndedError, exchange_over

__all__ = ["Host", "SharedMemoryCollectives", "WorkerEndedError", "exchange_over"]
