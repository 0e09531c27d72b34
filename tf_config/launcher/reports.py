"""Reports of a task's process to its sidecar, such as that it has created a strategy."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tf_config.address import Address
from tf_config.launcher.settings import SIDECAR_VARIABLE
from tf_config.rendezvous.http_store import HttpStore
from tf_config.secret import secret_of

# Reported by a strategy when it is created and when its scope is entered.
CREATED, ENTERED = "made", "used"
# Reported by a strategy whose workers do not wait for each other, and by its first exchange of
# values among all workers: until then, a worker that is started again can join the others. A
# parameter server reports the first as well, as soon as it has saved its state, and a worker the
# second if a restarted server lacks a variable.
CAN_REJOIN, EXCHANGED = "can-rejoin", "exchanged"
# Reported by a worker of an elastic job that was asked to leave.
LEAVES = "leaves"
# The prefix of the entries that are reports.
REPORTS = "tf-config"


def report(word: str, environ: Mapping[str, str] = os.environ) -> None:
    """Reports one of the words above to this process's sidecar, if it has one."""
    if is_reported(environ):
        at = Address.parse(environ[SIDECAR_VARIABLE])
        HttpStore(at, REPORTS, secret_of(environ)).put(word, b"")


def is_reported(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this process has a sidecar to which `report` reports."""
    return SIDECAR_VARIABLE in environ
