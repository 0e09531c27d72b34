"""Lookup of ids in the shards of all workers or servers, and the way back of gradients."""
