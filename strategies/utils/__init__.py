"""Helpers of several packages: argument checks, assertions in steps, threads, even partitions."""
