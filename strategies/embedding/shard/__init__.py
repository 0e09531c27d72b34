"""One worker's or server's part of a table: its ids, rows, counts and capacity."""
