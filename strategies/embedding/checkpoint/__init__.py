"""Rows in files: checkpoints, SavedModels, Keras's formats and plain files."""
