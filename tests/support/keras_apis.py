"""Where Keras 3 and tf_keras differ."""

from __future__ import annotations


def optimizer_variables(optimizer: object) -> list:
    """Returns an optimizer's variables: a property of Keras 3's, a method of tf_keras's."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
