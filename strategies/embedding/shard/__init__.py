"""Shards of tables: ids, rows, counters and capacity."""
