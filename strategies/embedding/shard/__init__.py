"""One shard of a table: its ids, rows, counters and capacity."""
