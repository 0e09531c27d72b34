"""The error of this package, and helpers for its messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ClusterConfigError(ValueError):
    """Raised when a cluster, task or TF_CONFIG breaks a rule.

    The message is one line: the rule, the value received and the remedy.
    """


def quoted(value: object, limit: int = 160) -> str:
    """Returns `value` as one line of at most about `limit` characters, for a message.

    >>> quoted("a\\nb")
    "'a\\\\nb'"
    """
    try:
        text = ascii(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__} too deep or too long to print"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def suggestion(value: object, known: Iterable[str]) -> str:
    """Returns a question that suggests the known name closest to `value`; "" if none is close.

    >>> suggestion("wrokers", ["workers", "ps"])
    " Did you mean 'workers'?"
    >>> suggestion("nonsense", ["workers", "ps"])
    ''
    """
    found = difflib.get_close_matches(str(value), list(known), 1)
    return f" Did you mean {quoted(found[0])}?" if found else ""
