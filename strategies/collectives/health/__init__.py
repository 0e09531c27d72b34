"""Whether the other workers live, and whether all are in the same operation."""
