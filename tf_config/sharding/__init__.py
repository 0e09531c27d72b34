"""Splits files of records into shards."""

from tf_config.sharding.records import FORMATS
from tf_config.sharding.source import Source
from tf_config.sharding.split import Split, split

__all__ = ["FORMATS", "Source", "Split", "split"]
