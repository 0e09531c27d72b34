"""Collective operations among workers."""

from strategies.collectives.base import Collectives, LocalCollectives

__all__ = ["Collectives", "LocalCollectives"]
