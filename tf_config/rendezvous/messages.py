"""Signed messages between the processes of a job: a signature, a space and JSON, in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tf_config.secret import is_signed, signature

LONGEST_MESSAGE = 1 << 22


class Unsigned(Exception):
    """Raised when a message has no signature, or a signature with a different secret."""


def encode(message: Mapping[str, Any], secret: str) -> bytes:
    """Returns the line of a message; its signature is empty if the secret is.

    >>> encode({"a": 1}, "")
    b' {"a": 1}\\n'
    """
    data = json.dumps(message).encode()
    return signature(secret, data).encode() + b" " + data + b"\n"


def decode(line: bytes, secret: str) -> Any:
    """Returns the message in a line.

    >>> decode(encode({"a": 1}, "0123456789abcdef"), "0123456789abcdef")
    {'a': 1}

    Raises:
      ValueError: if the line is not valid JSON.
      Unsigned: if the line has no valid signature.
    """
    signed, _, data = line.strip(b"\n").partition(b" ")
    if not is_signed(secret, signed.decode(errors="replace"), data):
        raise Unsigned
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("too deep") from None
