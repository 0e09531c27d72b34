"""Variables that expose only a shard to an update: a partition, or the rows of a step."""
