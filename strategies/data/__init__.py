"""Input pipelines: each worker's and each replica's shard of a dataset."""
