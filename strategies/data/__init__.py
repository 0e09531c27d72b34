"""Datasets: each worker's and each replica's part of them."""
