"""The common implementation of all strategies."""
