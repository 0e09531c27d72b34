"""Programs like keras.io's examples and those in public reports, reduced to seconds."""

from keras_io import pictures, reports, tables, text
from keras_io.program import Example, Outcome, Runtime

EXAMPLES: list[Example] = [*tables.EXAMPLES, *text.EXAMPLES, *pictures.EXAMPLES, *reports.EXAMPLES]

__all__ = ["EXAMPLES", "Example", "Outcome", "Runtime"]
