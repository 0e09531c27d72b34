"""Variables of which an update sees a shard: a partition, or the rows of a step."""
