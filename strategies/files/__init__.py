"""Files that several workers write, and files that are complete or absent."""

# In version 0.1.0, `strategies.files` was a module with these names; see
# strategies/moved_modules.py.
from strategies.files.collective_writing import own_path, writing

__all__ = ["own_path", "writing"]
