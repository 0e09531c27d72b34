"""A watchdog for the workers of a parameter-server job; a server holds the workers' reports."""

from __future__ import annotations

import contextlib
import queue
import time
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.compat.tensorflow import Session
from strategies.diagnostics.watchdog import Watchdog, step_timeout_seconds, watch_seconds
from strategies.ps.connection import ServerConnection, ServerGroup, address_state, call_in_thread
from strategies.utils.devices import HOST
from tf_config import ClusterSpec, Task

_ANSWER_SECONDS = 5.0
_CHECK_EVERY_SECONDS = 1.0
_MOMENT_SECONDS = 0.1


class ServerEntries:
    """Text entries of all workers on a parameter server, as a `Store`.

    Args:
      server: the server.

    Attributes:
      session: a session with the server that nothing else uses.
    """

    def __init__(self, server: ServerConnection):
        self._server = server
        graph = tf.Graph()
        with graph.as_default(), tf.device(HOST):
            table = tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.int64, value_dtype=tf.string, shared_name="operations"
            )
            self._key = tf.compat.v1.placeholder(tf.int64, [])
            self._value = tf.compat.v1.placeholder(tf.string, [])
            self._insert = tf.raw_ops.LookupTableInsertV2(
                table_handle=table, keys=self._key, values=self._value
            )
            self._find = tf.raw_ops.LookupTableFindV2(
                table_handle=table, keys=self._key, default_value=tf.constant("")
            )
        self.session = Session(f"grpc://{server.address}", graph=graph)
        self._unanswered: queue.SimpleQueue[Any] | None = None

    def put(self, key: Task | str, value: bytes) -> bool:
        """Writes an entry; returns whether the server answered."""
        return self._answer(self._insert, {self._key: _number(key), self._value: value}) is not None

    def get(self, key: Task | str) -> bytes | None:
        """Returns an entry; None if it does not exist or the server did not answer."""
        return self._answer([self._find], {self._key: _number(key)}) or None

    def _answer(self, fetch: object, feeds: dict[tf.Tensor, object]) -> bytes | None:
        if self._server.is_lost:
            return None
        try:
            if self._unanswered is not None:
                self._unanswered.get(timeout=_MOMENT_SECONDS)
        except queue.Empty:
            # Not another call: each call to a server that does not answer would keep a thread.
            return None
        # TensorFlow waits for a server that is gone, regardless of timeouts.
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._unanswered = answers
        call_in_thread(answers, None, lambda: self.session.run(fetch, feeds))
        end = time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                _, result, error = answers.get(timeout=_CHECK_EVERY_SECONDS)
                self._unanswered = None
                return (b"" if result is None else result[0]) if error is None else None
            if address_state(self._server.address) == "closed":
                break
        return None


def _number(key: Task | str) -> int:
    # TensorFlow has no hash table that maps strings to strings.
    return zlib.crc32(str(key).encode())


def watch_by_servers(
    servers: ServerGroup,
    cluster: ClusterSpec,
    task: Task,
    end: Callable[[str], None] | None = None,
) -> tuple[Watchdog, Session]:
    """Starts the watchdog of a worker that takes its steps together with the other workers.

    Returns:
      The watchdog and its session with the first server.
    """
    entries = ServerEntries(servers.servers[0])
    watchdog = Watchdog(
        entries, cluster, task, servers.operations, watch_seconds(), end,
        step_timeout=step_timeout_seconds(), needs_all=False, keeper=Task("ps", 0),
    )  # fmt: skip
    watchdog.start()
    return watchdog, entries.session
