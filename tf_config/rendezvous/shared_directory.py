"""A rendezvous in a directory that all processes share, such as one on NFS.

The first process writes a token of this rendezvous. The others answer to the token, and again when
it changes. A process accepts a cluster only if its own token is listed with it. So files left
behind by an earlier job mislead no process.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from tf_config.cluster import ClusterSpec
from tf_config.errors import ClusterConfigError, quoted
from tf_config.rendezvous.deadline import Deadline
from tf_config.rendezvous.participant import JoinRequest, Participant, Roster, cluster_of

_FIRST, _ANSWER = "first.json", "cluster.json"
_GOODBYE_SECONDS = 10.0
_GRACE_SECONDS = 5.0
# The prefix of directories created for one job, by environments that name no other place.
MADE_FOR_ONE_JOB = ".tf-config-"


def rendezvous(
    path: Path, participant: Participant, report: JoinRequest, deadline: Deadline
) -> ClusterSpec:
    """Returns the cluster once all processes have arrived.

    Raises:
      ClusterConfigError: if a task does not arrive in time, the reports contradict each other, or
        the directory cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        return (_lead if participant.leads else _follow)(path, participant, report, deadline)
    except OSError as error:
        raise ClusterConfigError(
            "The directory of a rendezvous must be writable by all tasks. Received: "
            f"{quoted(str(path))} ({error.strerror}). Use another one."
        ) from None


def _lead(
    path: Path, participant: Participant, report: JoinRequest, deadline: Deadline
) -> ClusterSpec:
    stale = [name for name in (_FIRST, _ANSWER) if (path / name).exists()]
    if stale:
        deadline.note(f"{path} holds files of an earlier job; they are replaced")
    for name in stale:
        _remove(path / name)
    _write(path / _FIRST, {"token": report.token})
    roster = Roster(participant)
    try:
        roster.add(report)
        while roster.missing:
            _check_first(path, report.token)
            for rank in participant.followers:
                found = _read(path / f"{rank}.json")
                if found is not None and found.get("first") == report.token:
                    roster.add(_report_in(found, path / f"{rank}.json"))
            if roster.missing and deadline.is_over:
                raise roster.too_late(deadline.timeout)
            if roster.missing:
                deadline.tick(roster.progress)
        answer = roster.answer()
    except ClusterConfigError as error:
        _write(path / _ANSWER, {"error": str(error), "first": report.token})
        _remove(path / _FIRST)  # or processes of a later job would answer it and get the error
        raise
    _write(path / _ANSWER, answer)
    _tidy_up(path, participant, Deadline(_GOODBYE_SECONDS, deadline.note))
    return cluster_of(answer)


def _follow(
    path: Path, participant: Participant, report: JoinRequest, deadline: Deadline
) -> ClusterSpec:
    own = path / f"{participant.rank}.json"
    answered_to = None
    while True:
        first = _read(path / _FIRST)
        if first is not None and first.get("token") != answered_to:
            answered_to = first.get("token")
            _write(own, {"first": answered_to, "report": report.to_dict()})
        elif first is not None:
            _check_own(own, participant, report)
        answer = _read(path / _ANSWER) or {}
        failed = answered_to is not None and answer.get("first") == answered_to
        tokens = answer.get("tokens")
        if (failed and "error" in answer) or (isinstance(tokens, list) and report.token in tokens):
            _remove(own)
            return cluster_of(answer)
        # The first process ends the rendezvous in time, and names the missing tasks.
        if deadline.overdue > (0 if first is None else _GRACE_SECONDS):
            _remove(own)
            raise ClusterConfigError(
                f"All tasks must connect to the rendezvous within {deadline.timeout:g} s. "
                "Received: "
                + ("the first one did not" if first is None else "not all of them did")
                + f", in {quoted(str(path))}. Start them too, or raise --start-timeout."
            )
        deadline.tick(f"waiting for {participant.first if first is None else 'the others'}")


def _check_first(path: Path, token: str) -> None:
    first = _read(path / _FIRST)
    if first is not None and first.get("token") != token:
        raise ClusterConfigError(
            "Two jobs cannot share a rendezvous. Received: another process with the rank of the "
            f"first one, in {quoted(str(path))}. Use a different directory for each job, and a "
            "different rank for each process."
        )


def _report_in(found: dict[str, Any], file: Path) -> JoinRequest:
    """Returns the report in a process's file."""
    try:
        return JoinRequest.from_dict(found.get("report"))
    except ValueError:
        raise ClusterConfigError(
            "The directory of a rendezvous cannot contain other files. Received: "
            f"{quoted(str(file))}, which was not written by a task. Remove it, or use another "
            "directory."
        ) from None


def _check_own(own: Path, participant: Participant, report: JoinRequest) -> None:
    """Checks that no other process claims to be this task."""
    found = _read(own)
    if found is not None and _report_in(found, own).token != report.token:
        raise ClusterConfigError(
            f"Two processes cannot be the same task. Received: two as {participant.task}, in "
            f"{quoted(str(own.parent))}. Use a different rank for each process, and a different "
            "directory for each job."
        )


def _tidy_up(path: Path, participant: Participant, deadline: Deadline) -> None:
    """Removes the files once all processes have read them and removed their own files."""
    left = [path / f"{rank}.json" for rank in participant.followers]
    while any(file.exists() for file in left) and not deadline.is_over:
        deadline.tick("waiting for the others to leave the rendezvous")
    for name in (_FIRST, _ANSWER):
        _remove(path / name)
    if path.name.startswith(MADE_FOR_ONE_JOB):
        with contextlib.suppress(OSError):
            path.rmdir()


def _write(path: Path, values: dict[str, Any]) -> None:
    """Writes a file atomically: it is complete as soon as it is visible."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    draft.write_text(json.dumps(values))
    draft.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(path.read_text())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
