"""Collective operations among workers."""

from strategies.collectives.base import Collectives, LocalCollectives, RowCounts

__all__ = ["Collectives", "LocalCollectives", "RowCounts"]
