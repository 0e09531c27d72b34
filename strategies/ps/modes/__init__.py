"""Update modes: sync, async, half_async and geo."""
