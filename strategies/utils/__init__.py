"""What several packages use: checks of arguments, assertions in steps, even partitions."""
