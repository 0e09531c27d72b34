"""Where the rows of tables are: in the memory of the workers, or on parameter servers."""
