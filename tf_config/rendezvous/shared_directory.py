"""A rendezvous in a directory that all processes share, such as one on NFS.

The leader writes a token that identifies this rendezvous. The others write their reports for this
token, and write them again if it changes. A process accepts a cluster only if the process's own
token is listed with it. Therefore files of an earlier job cannot be mistaken for those of this one.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from tf_config.cluster import ClusterSpec
from tf_config.errors import ClusterConfigError, quoted
from tf_config.rendezvous.participant import JoinRequest, Participant, Roster, cluster_of
from tf_config.rendezvous.store import FileStore
from tf_config.rendezvous.waiting import Deadline

_FIRST, _ANSWER = "first", "cluster"
_GOODBYE_SECONDS = 10.0
_GRACE_SECONDS = 5.0
# The prefix of a directory that is created for one job and removed after the rendezvous.
MADE_FOR_ONE_JOB = ".tf-config-"


def rendezvous(
    path: Path, participant: Participant, report: JoinRequest, deadline: Deadline
) -> ClusterSpec:
    """Waits until all processes have connected; returns the cluster.

    Raises:
      ClusterConfigError: if a task does not connect in time, the reports contradict each other, or
        the directory is not writable.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        exchange = _lead if participant.leads else _follow
        return exchange(FileStore(path), participant, report, deadline)
    except OSError as error:
        raise ClusterConfigError(
            "The directory of a rendezvous must be writable by all tasks. Received: "
            f"{quoted(str(path))} ({error.strerror}). Use another directory."
        ) from None


def _lead(
    store: FileStore, participant: Participant, report: JoinRequest, deadline: Deadline
) -> ClusterSpec:
    stale = [key for key in (_FIRST, _ANSWER) if store.file(key).exists()]
    if stale:
        deadline.note(f"{store.directory} holds files of an earlier job; they are replaced")
    for key in stale:
        store.delete(key)
    _write(store, _FIRST, {"token": report.token})
    roster = Roster(participant)
    try:
        roster.add(report)
        deadline.wait_until(
            lambda: _collect_reports(store, roster, report.token),
            lambda: roster.progress,
            lambda _: roster.timeout_error(deadline.timeout),
        )
        answer = roster.answer()
    except ClusterConfigError as error:
        _write(store, _ANSWER, {"error": str(error), "first": report.token})
        store.delete(_FIRST)  # otherwise, processes of a later job would answer and get the error
        raise
    _write(store, _ANSWER, answer)
    _tidy_up(store, participant, Deadline(_GOODBYE_SECONDS, deadline.note))
    return cluster_of(answer)


def _collect_reports(store: FileStore, roster: Roster, token: str) -> bool:
    """Adds the reports that exist for this rendezvous; returns whether none is missing."""
    if not roster.missing:
        return True
    _check_first(store, token)
    for key in map(str, roster.participant.followers):
        entry = _read(store, key)
        if entry is not None and entry.get("first") == token:
            roster.add(_report_in(entry, store.file(key)))
    return not roster.missing


def _follow(
    store: FileStore, participant: Participant, report: JoinRequest, deadline: Deadline
) -> ClusterSpec:
    own = str(participant.rank)
    answered_to = None
    while True:
        first = _read(store, _FIRST)
        if first is not None and first.get("token") != answered_to:
            answered_to = first.get("token")
            _write(store, own, {"first": answered_to, "report": report.to_dict()})
        elif first is not None:
            _check_own(store, participant, report)
        answer = _read(store, _ANSWER) or {}
        failed = answered_to is not None and answer.get("first") == answered_to
        tokens = answer.get("tokens")
        if (failed and "error" in answer) or (isinstance(tokens, list) and report.token in tokens):
            store.delete(own)
            return cluster_of(answer)
        # The leader has a grace period in which it reports the missing tasks itself.
        if deadline.overdue > (0 if first is None else _GRACE_SECONDS):
            store.delete(own)
            raise ClusterConfigError(
                f"All tasks must connect to the rendezvous within {deadline.timeout:g} s. "
                "Received: "
                + ("no first task" if first is None else "only some of the tasks")
                + f", in {quoted(str(store.directory))}. Start all tasks, or raise --start-timeout."
            )
        deadline.tick(f"waiting for {participant.leading_task if first is None else 'the others'}")


def _check_first(store: FileStore, token: str) -> None:
    first = _read(store, _FIRST)
    if first is not None and first.get("token") != token:
        raise ClusterConfigError(
            "Two jobs cannot share a rendezvous. Received: two processes with the rank of the "
            f"first task, in {quoted(str(store.directory))}. Use a different directory for each "
            "job, and a different rank for each process."
        )


def _report_in(entry: dict[str, Any], file: Path) -> JoinRequest:
    try:
        return JoinRequest.from_dict(entry.get("report"))
    except ValueError:
        raise ClusterConfigError(
            "The directory of a rendezvous cannot contain other files. Received: "
            f"{quoted(str(file))}, which was not written by a task. Remove it, or use another "
            "directory."
        ) from None


def _check_own(store: FileStore, participant: Participant, report: JoinRequest) -> None:
    """Checks that no other process claims to be this task."""
    own = str(participant.rank)
    entry = _read(store, own)
    if entry is not None and _report_in(entry, store.file(own)).token != report.token:
        raise ClusterConfigError(
            "Two processes cannot be the same task. Received: two processes for "
            f"{participant.task}, in {quoted(str(store.directory))}. Use a different rank for each "
            "process, and a different directory for each job."
        )


def _tidy_up(store: FileStore, participant: Participant, deadline: Deadline) -> None:
    """Removes the leader's files once all other processes have read them and removed their own."""
    files = [store.file(str(rank)) for rank in participant.followers]
    deadline.poll(
        lambda: not any(file.exists() for file in files),
        "waiting for the others to leave the rendezvous",
    )
    for key in (_FIRST, _ANSWER):
        store.delete(key)
    if store.directory.name.startswith(MADE_FOR_ONE_JOB):
        with contextlib.suppress(OSError):
            store.directory.rmdir()


def _write(store: FileStore, key: str, values: dict[str, Any]) -> None:
    store.put(key, json.dumps(values).encode())


def _read(store: FileStore, key: str) -> dict[str, Any] | None:
    try:
        values = json.loads(store.get(key) or b"")
    except (ValueError, RecursionError):  # the file does not belong to this job
        return None
    return values if isinstance(values, dict) else None
