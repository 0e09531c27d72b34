"""A secret that the tasks of one job share, and the signatures that are computed with it.

Messages are sent in plain text with a signature (HMAC-SHA256, RFC 2104), which cannot be computed
without the secret and does not reveal it. `tf-config run` creates a new secret at each start;
otherwise, the user sets the same value of the variable in all tasks.

[Note: whose secret]
The process that starts a task may not have the task's secret: the launcher creates one for each
start of a job and passes it to the tasks only. Therefore helper processes of a task, such as its
sidecar, read the secret from the environment of the task, not from their own.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping

from tf_config.errors import ClusterConfigError

SECRET_VARIABLE = "KERAS_STRATEGIES_SECRET"
_BYTES = 16
_LEAST_CHARACTERS = 16


def new_secret() -> str:
    """Returns a new random secret.

    >>> len(new_secret()), new_secret() == new_secret()
    (32, False)
    """
    return secrets.token_hex(_BYTES)


def secret_of(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the secret in the environment of a task; "" if it is not set.

    >>> secret_of({})
    ''

    Raises:
      ClusterConfigError: if the secret is too short; the message does not contain the secret.
    """
    secret = environ.get(SECRET_VARIABLE, "")
    if 0 < len(secret) < _LEAST_CHARACTERS:
        raise ClusterConfigError(
            f"{SECRET_VARIABLE} must have at least {_LEAST_CHARACTERS} characters, so that it "
            f"cannot be guessed. Received: {len(secret)} characters. Create a secret with: openssl "
            f"rand -hex {_BYTES}."
        )
    return secret


def signature(secret: str, *parts: bytes) -> str:
    """Returns the signature of a message of one or more parts; "" if the secret is empty.

    >>> signature("", b"hello")
    ''
    >>> signature("0123456789abcdef", b"a", b"bc") == signature("0123456789abcdef", b"ab", b"c")
    False
    """
    if not secret:
        return ""
    digest = hmac.new(secret.encode(errors="surrogateescape"), digestmod=hashlib.sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def is_signed(secret: str, given: str, *parts: bytes) -> bool:
    """Returns whether a signature is valid for a message; always True if the secret is empty.

    >>> is_signed("0123456789abcdef", "", b"hello"), is_signed("", "", b"hello")
    (False, True)
    """
    expected = signature(secret, *parts)
    # Compared in constant time, so that the duration does not reveal how many characters match.
    return not secret or hmac.compare_digest(expected.encode(), given.encode(errors="replace"))
