"""Persistence of rows: checkpoints, SavedModels, Keras's formats and plain files."""
