"""Files that several workers write, and files that are complete or absent."""
