"""When a worker's changes reach the servers: sync, async, half_async and geo."""
