"""Reports of a task's process to its sidecar: that it created a strategy and entered its scope."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tf_config.address import Address
from tf_config.launcher.settings import SIDECAR_VARIABLE
from tf_config.rendezvous.http_store import HttpStore
from tf_config.secret import secret_of

# Reported by a strategy when it is created and when its scope is entered.
CREATED, ENTERED = "made", "used"
# The prefix of the entries that are reports.
REPORTS = "tf-config"


def report(word: str, environ: Mapping[str, str] = os.environ) -> None:
    """Reports `CREATED` or `ENTERED` to this process's sidecar, if it has one."""
    if is_reported(environ):
        at = Address.parse(environ[SIDECAR_VARIABLE])
        HttpStore(at, REPORTS, secret_of(environ)).put(word, b"")


def is_reported(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this process has a sidecar to which `report` reports."""
    return SIDECAR_VARIABLE in environ
