"""The common base of all strategies."""
