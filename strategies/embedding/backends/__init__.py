"""The places that hold the rows of tables: workers' memory, parameter servers, or both."""
