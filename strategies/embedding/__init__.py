"""Embeddings for an unbounded number of int64 ids, sharded over workers or parameter servers."""

from strategies.embedding.config import Admission, Eviction, FeatureConfig, TableConfig

__all__ = ["Admission", "Eviction", "FeatureConfig", "TableConfig"]
