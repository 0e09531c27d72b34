"""Programs as keras.io's examples are, in words of our own and reduced to seconds."""

from keras_io import pictures, tables, text
from keras_io.program import Example, Outcome, Runtime

EXAMPLES: list[Example] = [*tables.EXAMPLES, *text.EXAMPLES, *pictures.EXAMPLES]

__all__ = ["EXAMPLES", "Example", "Outcome", "Runtime"]
