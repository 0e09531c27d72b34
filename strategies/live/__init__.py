"""Live updates: a served model follows the training of the model that it was exported from."""
