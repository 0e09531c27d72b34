"""A secret that the tasks of one job share, and the signatures made with it.

Messages are sent in plain text with a signature (HMAC-SHA256, RFC 2104). Without the secret, nobody
can make a signature, and no signature reveals the secret. `tf-config run` makes a new secret at
each start; otherwise the user sets the same variable in all tasks.

[Note: whose secret]
The process that starts a task may not have the task's secret: the launcher makes one for each start
of a job, and only the tasks get it. So whatever runs beside a task, such as its sidecar, takes the
secret from the environment of the task, and not from its own.
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
    """Returns a secret that nobody can guess.

    >>> len(new_secret()), new_secret() == new_secret()
    (32, False)
    """
    return secrets.token_hex(_BYTES)


def secret_of(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the secret of a task with this environment; "" if it has none.

    >>> secret_of({})
    ''

    Raises:
      ClusterConfigError: if it is too short; the message does not contain it.
    """
    secret = environ.get(SECRET_VARIABLE, "")
    if 0 < len(secret) < _LEAST_CHARACTERS:
        raise ClusterConfigError(
            f"{SECRET_VARIABLE} must have at least {_LEAST_CHARACTERS} characters, so that it "
            f"cannot be guessed. Received: {len(secret)}. Create one: openssl rand -hex {_BYTES}."
        )
    return secret


def signature(secret: str, *parts: bytes) -> str:
    """Returns the signature of a message of one or more parts; "" without a secret.

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
    """Returns whether a signature is valid for a message; without a secret, any is.

    >>> is_signed("0123456789abcdef", "", b"hello"), is_signed("", "", b"hello")
    (False, True)
    """
    expected = signature(secret, *parts)
    # Compared in constant time, which does not reveal how much of the signature is right.
    return not secret or hmac.compare_digest(expected.encode(), given.encode(errors="replace"))
