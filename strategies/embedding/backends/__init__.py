"""The two places that hold the rows of tables: the workers' memory, and parameter servers."""
