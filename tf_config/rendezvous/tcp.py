"""A rendezvous at a TCP address, on which the leader listens until the rendezvous ends.

A message is a line with a signature (empty if the job has no secret), a space, and JSON.

Each process keeps one connection open instead of polling a store. From the connections, the leader
learns the addresses of the hosts, and notices if a waiting process has ended. Answers are signed
like reports, so that a process cannot join the cluster of an unrelated server at that address.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from tf_config.address import Address
from tf_config.bind_address import listening_hosts
from tf_config.cluster import ClusterSpec
from tf_config.errors import ClusterConfigError, quoted
from tf_config.rendezvous.messages import LONGEST_MESSAGE, Unsigned, decode, encode
from tf_config.rendezvous.participant import JoinRequest, Participant, Roster, cluster_of
from tf_config.rendezvous.waiting import Deadline
from tf_config.secret import SECRET_VARIABLE, secret_of

_CONNECT_SECONDS = 5.0
_GRACE_SECONDS = 5.0


def rendezvous(
    address: Address, participant: Participant, host: str | None, port: int, deadline: Deadline
) -> ClusterSpec:
    """Waits until all processes have connected; returns the cluster.

    Args:
      address: the address that the leader listens on.
      participant: this process and its rank.
      host: the host name or IP address at which the others reach this process; None for the local
        address of the connection.
      port: the free port that this process reports.
      deadline: the timeout.

    Raises:
      ClusterConfigError: if a task does not connect in time, the reports contradict each other, or
        the leader cannot listen on the address.
    """
    if participant.leads:
        return _Leader(address, participant, host, port, deadline).run()
    return _follow(address, participant, host, port, deadline)


class _Leader:
    """Listens until all processes have reported, then sends the cluster to all of them.

    It waits in its selector, not in `Deadline.wait_until`, which would accept only one connection
    in each interval between two checks.
    """

    def __init__(
        self,
        address: Address,
        participant: Participant,
        host: str | None,
        port: int,
        deadline: Deadline,
    ):
        self._address = address
        self._deadline = deadline
        self._roster = Roster(participant)
        self._own = JoinRequest.of(participant, host or "", port)
        self._buffers: dict[socket.socket, bytes] = {}
        self._members: dict[socket.socket, JoinRequest] = {}
        self._secret = secret_of()
        self._selector = selectors.DefaultSelector()

    def run(self) -> ClusterSpec:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(_listen(self._address))
            stack.callback(self._close)
            self._selector.register(listener, selectors.EVENT_READ)
            try:
                self._roster.add(self._own)
                while self._roster.missing:
                    for key, _ in self._selector.select(0.2):
                        if key.fileobj is listener:
                            self._accept(listener)
                        else:
                            self._receive(key.fileobj)  # type: ignore[arg-type]
                    if self._roster.missing:
                        if self._deadline.is_over:
                            raise self._roster.timeout_error(self._deadline.timeout)
                        self._deadline.log_if_due(self._roster.progress)
                self._unify_hosts()
                answer = self._roster.answer()
            except ClusterConfigError as error:
                self._send_all({"error": str(error)})
                raise
            self._send_all(answer)
        return cluster_of(answer)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.settimeout(_CONNECT_SECONDS)
        self._buffers[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        self._buffers[connection] += data
        if not data or len(self._buffers[connection]) > LONGEST_MESSAGE:
            self._drop(connection)
        elif self._buffers[connection].endswith(b"\n") and connection not in self._members:
            try:
                report = JoinRequest.from_dict(decode(self._buffers[connection], self._secret))
            except Unsigned:
                self._deadline.note(f"rejected a connection without this job's {SECRET_VARIABLE}")
                self._drop(connection)
                return
            except ValueError:  # not a process of this job
                self._drop(connection)
                return
            # Before the report is checked, so that this process receives an error about it, too.
            self._members[connection] = report
            self._roster.add(report)

    def _drop(self, connection: socket.socket) -> None:
        report = self._members.pop(connection, None)
        if report is not None and self._roster.reports.get(report.rank) == report:
            del self._roster.reports[report.rank]  # the process may connect again
        self._selector.unregister(connection)
        del self._buffers[connection]
        connection.close()

    def _unify_hosts(self) -> None:
        """Sets the host of all processes on this host to the address that other hosts use.

        A process is on this host if both ends of its connection have the same address. That address
        may be a loopback address, which other hosts cannot reach. Moreover, tasks are treated as
        sharing the cores and GPUs of a host only if their reported hosts are equal.
        """
        if self._own.host:  # the user has chosen the interface
            return
        endpoints = {member: _endpoints(member) for member in self._members}
        far = [own for own, peer in endpoints.values() if own != peer]
        near = [own for own, peer in endpoints.values() if own == peer]
        host = next((own for own in far + near if not ip_address(own).is_loopback), "127.0.0.1")
        reports = self._roster.reports
        reports[self._own.rank] = replace(self._own, host=host)
        for member, report in self._members.items():
            own, peer = endpoints[member]
            if own == peer:
                reports[report.rank] = replace(report, host=host)

    def _send_all(self, message: Mapping[str, Any]) -> None:
        data = encode(message, self._secret)
        for connection in self._members:
            with contextlib.suppress(OSError):
                connection.sendall(data)

    def _close(self) -> None:
        for connection in self._buffers:
            connection.close()
        self._selector.close()


def _follow(
    address: Address, participant: Participant, host: str | None, port: int, deadline: Deadline
) -> ClusterSpec:
    while True:
        answer, waiting = _ask(address, participant, host, port, deadline)
        if answer is not None:
            return cluster_of(answer)
        if deadline.is_over:
            raise ClusterConfigError(
                f"All tasks must connect to the rendezvous within {deadline.timeout:g} s. "
                f"Received: {waiting}. "
                "Start the first task on that host, open the port, or raise --start-timeout."
            )
        deadline.tick(waiting)


def _ask(
    address: Address, participant: Participant, host: str | None, port: int, deadline: Deadline
) -> tuple[dict[str, Any] | None, str]:
    """Returns the leader's answer, or None, and the reason why there is no answer yet."""
    first, secret = participant.leading_task, secret_of()
    try:
        connection = socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
    except OSError as error:
        return None, f"waiting for {first} at {address} ({error.strerror or error})"
    with connection:
        report = JoinRequest.of(participant, host or _plain_ip(connection.getsockname()[0]), port)
        data = b""
        try:
            connection.sendall(encode(report.to_dict(), secret))
            connection.settimeout(0.5)
            # The leader has a grace period in which it reports the missing tasks itself.
            while not data.endswith(b"\n") and deadline.overdue < _GRACE_SECONDS:
                try:
                    step = connection.recv(1 << 16)
                except TimeoutError:
                    deadline.log_if_due(f"connected to {first}; waiting for the other tasks")
                    continue
                if not step or len(data) > LONGEST_MESSAGE:
                    break
                data += step
            answer = decode(data, secret)
        except Unsigned:
            return None, f"{address} answers without the signature of this job's {SECRET_VARIABLE}"
        except (OSError, ValueError):
            return None, (
                f"{first} at {address} closed the connection. If a server of an earlier job still "
                "runs there, end it; if only this task was restarted, set its TF_CONFIG"
            )
    is_answer = isinstance(answer, dict) and ("error" in answer or "cluster" in answer)
    return answer if is_answer else None, f"{address} is not a rendezvous"


def _listen(address: Address) -> socket.socket:
    # No fallback to all addresses, as in `bind_first`: if this machine does not have the address,
    # the leader does not run on the host of the URL, where the others would wait in vain.
    _, host = listening_hosts(address.host)[0]
    try:
        family, _, _, _, endpoint = socket.getaddrinfo(
            host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(endpoint)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise ClusterConfigError(
            "The first task must be able to listen on the address of the rendezvous. Received: "
            f"{quoted(str(address))} ({error.strerror or error}). "
            + (
                "End the server that listens there, for example of an earlier job, or choose "
                "another port."
                if taken
                else "The address must be that of the host that the first task runs on."
            )
        ) from None
    return listener


def _endpoints(connection: socket.socket) -> tuple[str, str]:
    """Returns the local and the remote IP address of a connection."""
    return _plain_ip(connection.getsockname()[0]), _plain_ip(connection.getpeername()[0])


def _plain_ip(host: str) -> str:
    """Returns an IP address without the prefix or zone that IPv6 sockets add to it."""
    return host.removeprefix("::ffff:") if "." in host else host.partition("%")[0]
