"""Persistence of rows: checkpoints, SavedModels, Keras formats and plain files."""
