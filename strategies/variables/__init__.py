"""Variables that show an update only a part of themselves: a partition, or the rows of a step."""
