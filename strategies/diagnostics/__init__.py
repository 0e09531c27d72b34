"""Detection of workers that have ended or that wait in different operations."""
