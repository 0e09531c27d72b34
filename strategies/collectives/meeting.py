"""The wait for all workers at the start: named, and never endless.

The first worker serves a small store over HTTP (Horovod's rendezvous server); each worker
leaves its name there and looks for the names of all others.
"""

from __future__ import annotations

import hashlib
import http.client
import time

from absl import logging

from tf_config import Address, ClusterConfigError, ClusterSpec, Task

_POLL_SECONDS = 0.1
_NAME_EVERY_SECONDS = 5.0
_HTTP_TIMEOUT_SECONDS = 5.0
_SCOPE = "keras_strategies_meeting"


def wait_for_all(cluster: ClusterSpec, task: Task, timeout: float) -> None:
    """Returns when every worker is here; names those that are not every 5 seconds.

    Args:
      cluster: what this task was told of the cluster.
      task: this one.
      timeout: seconds until it gives up.

    Raises:
      TimeoutError: if a worker did not come in time; the message names it.
      ClusterConfigError: if a worker came that was told of another cluster.
    """
    tasks = cluster.training_tasks
    store = _Store(cluster.addresses[tasks[0]])
    mine = hashlib.sha256(repr(cluster.to_dict()).encode()).hexdigest().encode()
    start = time.monotonic()
    named = start
    announced = False
    missing = [other for other in tasks if other != task]
    while missing:
        announced = announced or store.put(task, mine)
        # One question at a time: with all at once, N workers would ask N * N.
        while announced and missing and _is_here(store, missing[0], mine):
            missing.pop(0)
        now = time.monotonic()
        over = now - start >= timeout
        if missing and (over or now - named >= _NAME_EVERY_SECONDS):
            named = now
            if announced:
                missing = [other for other in missing if not _is_here(store, other, mine)]
            # Where nobody answers, the first worker is not here, and only that is known.
            absent = missing if announced else tasks[:1]
            names = ", ".join(f"{other} ({cluster.addresses[other]})" for other in absent)
            if over and missing:
                raise TimeoutError(
                    f"All workers meet at the start of training within {timeout:g} s. {task} "
                    f"still waits for {names}. See that each of them was started with the same "
                    "cluster and did not fail; a longer wait is set with '--start-timeout' or "
                    "the argument start_timeout."
                )
            if missing:
                elapsed = now - start
                logging.warning("%s waits for %s: %.0f s of %g s.", task, names, elapsed, timeout)
        if missing:
            time.sleep(_POLL_SECONDS)


class _Store:
    """The first worker's key-value store, as the others see it."""

    def __init__(self, address: Address):
        self._address = address

    def put(self, task: Task, value: bytes) -> bool:
        """Writes a task's entry; returns whether the store was there."""
        status, _ = self._request("PUT", task, value)
        return status == http.client.OK

    def get(self, task: Task) -> bytes | None:
        """Returns a task's entry, None if there is none."""
        status, body = self._request("GET", task)
        return body if status == http.client.OK else None

    def _request(self, method: str, task: Task, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(
            self._address.host, self._address.port, timeout=_HTTP_TIMEOUT_SECONDS
        )
        try:
            connection.request(method, f"/{_SCOPE}/{task.label}", body)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


def _is_here(store: _Store, task: Task, expected: bytes) -> bool:
    entry = store.get(task)
    if entry is not None and entry != expected:
        raise ClusterConfigError(
            "All workers are told of the same cluster. Received: another one in "
            f"{task}. Compare 'tf-config show' on both, and start all tasks anew."
        )
    return entry is not None
