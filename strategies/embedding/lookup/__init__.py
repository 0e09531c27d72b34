"""Lookup of ids in the shards of workers or servers, and the return of gradients to them."""
