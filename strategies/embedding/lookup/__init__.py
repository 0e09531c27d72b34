"""Lookup of ids in the shards of workers or servers, and the way of gradients back to them."""
