"""Embeddings of ids, any number of any int64, sharded over workers or parameter servers."""

from strategies.embedding.config import Admission, Eviction, FeatureConfig, TableConfig

__all__ = ["Admission", "Eviction", "FeatureConfig", "TableConfig"]
