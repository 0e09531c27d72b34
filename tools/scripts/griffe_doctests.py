"""Puts the doctests of the API reference between fences: an extension of griffe, see mkdocs.yml.

It is beside the scripts because only the environment of 'make docs' has griffe, and the tests
import all other modules of tools/.
"""

from typing import Any

import griffe
from doctest_fences import fence_doctests  # found because docs_hooks.py puts tools/ on the path


class FencedDoctests(griffe.Extension):
    """Changes docstrings as they are read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object of the source."""
        if obj.docstring:
            obj.docstring.value = fence_doctests(obj.docstring.value)
