"""Embeddings of ids, of any number and any int64, shared out over the workers."""

from strategies.embedding.config import Admission, Eviction, FeatureConfig, TableConfig

__all__ = ["Admission", "Eviction", "FeatureConfig", "TableConfig"]
