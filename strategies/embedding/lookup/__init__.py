"""From ids to their rows, and from the rows' gradients back to the tables."""
