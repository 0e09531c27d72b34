"""What a parameter server saves of its state, and what one that takes its place restores.

Both servers are in this process, at addresses of their own.
"""

import os
import resource
import signal
import socket
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.shard.id_map import IdMap
from strategies.ps.connection import ServerConnection
from strategies.ps.membership import Membership
from strategies.ps.restarts import ServerRestarts
from strategies.ps.row_log import RowLog
from strategies.ps.saved_state import SaveDirectory, restore
from strategies.ps.sequence_number import SequenceNumber
from strategies.ps.state_saver import StateSaver
from strategies.variables.growable_array import GrowableArray
from strategies.variables.row_view import RowView
from tests.support.checks import run_checks
from tf_config import Address

ROWS = 2000  # of a variable with a log
EXPECTED = 50_000_000  # rows of an array, most of which are never written
directory = Path.cwd()


class Server:
    """A server, and a worker's connection to it with variables and tables of all kinds.

    Args:
      state: the state to restore; None for none.
    """

    def __init__(self, state=None):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = Address("127.0.0.1", free.getsockname()[1])
        server = tf.distribute.Server({"ps": [str(address)]}, job_name="ps", task_index=0)
        self.target = server.target
        if state is not None:
            restore(self.target, state)
        membership = Membership(self.target, 1)
        membership.initialize(0)
        self.connection = ServerConnection(0, address)
        self.connection.expect_restarts(ServerRestarts(0, address, membership, 0, 20.0))
        with self.connection.building():
            self.weight = variable("weight", tf.zeros([ROWS, 2]))
            self.half = variable("half", tf.zeros([3], tf.bfloat16))
            self.never = variable("never", tf.zeros([5]))
            self.log = RowLog("weight", ROWS)
            self.map = IdMap()
            self.rows = GrowableArray((2,), tf.float32, 0.0, EXPECTED)
            self.view = RowView(counts_frees=True)
            created = tf.compat.v1.global_variables()
            self.initializers = [each.initializer for each in created if each is not self.never]

    def run(self, body, *arrays):
        """Runs a function of tensors under the lock, as workers do."""
        with self.connection.building():
            specs = [(each.dtype, [None] * each.ndim) for each in map(np.asarray, arrays)]
            feeds = [tf.compat.v1.placeholder(*spec) for spec in specs]
        done, results = self.connection.locked(lambda: list(body(*feeds) or []))
        values, _ = self.connection.run([results, done], dict(zip(feeds, arrays, strict=True)))
        return values

    def initialize(self):
        self.connection.run(self.initializers)

    def fill(self):
        """Gives everything but one variable a value."""
        self.initialize()

        def change():
            self.weight.assign_add(tf.ones([ROWS, 2]))
            self.half.assign(tf.constant([0.5, -2, 3e38], tf.bfloat16))
            self.log.add(tf.constant([3, 1999], tf.int64))
            self.rows.resize(tf.constant(4, tf.int64))
            self.rows.update(tf.range(4), tf.reshape(tf.range(8.0), [4, 2]))
            self.map.insert(tf.constant([-7, 2**62], tf.int64), tf.constant([3, 1], tf.int64))
            self.view.grow(tf.constant(4, tf.int64))
            self.view.mark_freed(tf.constant([2], tf.int64))

        self.run(change)

    def read(self, variable):
        """Returns the value of a variable; None if it has none."""
        with self.connection.building():
            flag, value = variable.is_initialized(), variable.read_value()
        return self.connection.run(value) if self.connection.run(flag) else None

    def add_one(self):
        def add():
            self.weight.assign_add(tf.ones([ROWS, 2]))

        self.run(add)

    def references(self, rows):
        return self.run(lambda rows: [self.view.references(rows)], np.array(rows))[0]

    def kept(self, references):
        """Returns which references are not dropped."""
        return self.run(lambda each: [self.view.drop_freed(each)[0]], references)[0].tolist()

    def saver(self, name, seconds=1000.0):
        """Returns what saves the state in a new directory, and a list that gets its words."""
        saves, said = SaveDirectory(directory / name), []
        saves.create()
        done = lambda: said.append("saved")  # noqa: E731
        return StateSaver(self.target, saves, seconds, done, said.append), saves, said


def variable(name, value):
    return ResourceVariable(lambda: value, name=name, trainable=False)


def restarted(server, name):
    """Saves a server's state; returns a server that has restored it."""
    saver, saves, _ = server.saver(name)
    assert saver.save_if_due()
    return Server(saves.latest())


def check_all_kinds_of_state_are_restored():
    first = Server()
    first.fill()
    second = restarted(first, "kinds")
    weight, half = second.read(second.weight), second.read(second.half)
    assert (weight == 1).all() and weight.shape == (ROWS, 2)
    assert half.dtype == tf.bfloat16.as_numpy_dtype
    expected = tf.constant([0.5, -2, 3e38], tf.bfloat16)
    assert half.tobytes() == expected.numpy().tobytes()
    (rows,) = second.run(lambda: [second.rows.gather(tf.range(4))])
    np.testing.assert_array_equal(rows, np.arange(8.0).reshape(4, 2))
    found = second.run(lambda ids: [second.map.find(ids)], np.array([-7, 2**62, 5]))
    assert found[0].tolist() == [3, 1, -1]


def check_a_restored_array_grows():
    first = Server()
    first.fill()
    second = restarted(first, "grows")

    def grow():
        second.rows.resize(tf.constant(1000, tf.int64))
        return [second.rows.gather(tf.constant([3, 4, 999]))]

    (rows,) = second.run(grow)
    assert rows.tolist() == [[6, 7], [0, 0], [0, 0]]


def check_a_variable_without_a_value_has_none_afterwards():
    first = Server()
    first.fill()
    second = restarted(first, "never")
    assert second.read(second.never) is None and second.read(second.half) is not None


def check_reserved_rows_are_not_saved():
    first = Server()
    first.fill()
    # So many rows take 80 KB, and with those that are reserved 1 MB.
    first.run(lambda: first.rows.resize(tf.constant(10_000, tf.int64)))
    saver, saves, _ = first.saver("small")
    saver.save_if_due()
    assert 90_000 < saves.latest().size() < 300_000


def check_references_from_before_are_dropped():
    first = Server()
    first.fill()
    second = restarted(first, "references")
    first.run(lambda: first.view.grow(tf.constant(6, tf.int64)))
    # Of rows 4 and 5, the save has none.
    before = first.references([0, 2, 3, 4, 5])
    assert first.kept(before) == before.tolist()
    assert second.kept(before) == []
    # Another id gets row 4 on the restarted server.
    second.run(lambda: second.view.grow(tf.constant(5, tf.int64)))
    assert second.kept(before) == []
    after = second.references([0, 2, 4])
    assert second.kept(after) == after.tolist()
    third = restarted(second, "references again")
    assert third.kept(before) == third.kept(after) == []


def check_all_rows_of_a_logged_variable_are_pulled():
    first = Server()
    first.fill()
    second = restarted(first, "logs")

    def since(server, position):
        rows, position = server.run(server.log.since, np.array(position))
        return len(rows), position

    assert since(first, 0) == (2, 2)
    for known in (0, 2, 100):  # also a position that the save does not have
        count, position = since(second, known)
        assert count == ROWS and position > 2**39
    assert since(second, position) == (0, position)


def check_a_push_is_made_once_before_or_after_the_save():
    first = Server()
    first.fill()

    def push(server, calls, n):
        def change():
            server.weight.assign_add(tf.ones([ROWS, 2]))

        server.run(lambda n: calls.change_once(n, change), np.int64(n))

    with first.connection.building():
        calls = SequenceNumber()
    push(first, calls, 1)
    second = restarted(first, "push")
    with second.connection.building():
        again = SequenceNumber()
        name = calls._handle.op.get_attr("shared_name")
        again._handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)
    for n, expected in ((1, 2), (5, 3), (5, 3)):  # pushes 2 to 4 are lost
        push(second, again, n)
        assert (second.read(second.weight) == expected).all()


def check_what_is_created_meanwhile_is_not_missing():
    server = Server()
    server.fill()
    saver, saves, said = server.saver("meanwhile")
    saver._update_program()
    server.connection.run(server.never.initializer)
    assert not saver._save(saver._program)
    assert saves.latest() is None and not said
    assert saver.save_if_due() and said == ["saved"]
    assert "never" in {entry.name for entry in saves.latest().entries}
    saver._update_program()
    with server.connection.building():
        other = variable("other", tf.zeros([2]))
    server.connection.run(other.initializer)
    before = saves.latest()
    assert not saver._save(saver._program)
    assert saves.latest() == before and before.folder.exists()


def check_saves_are_made_when_they_are_due():
    server = Server()
    server.fill()
    saver, saves, _ = server.saver("due", seconds=0.0)
    assert saver.save_if_due()
    assert not saver.save_if_due(), "a save takes a twentieth of the time"
    saver._ended = 0.0
    assert saver.save_if_due()
    assert [path.name for path in saves.path.iterdir() if path.is_dir()] == ["000002"]
    saver._ended, saver._next = 0.0, float("inf")
    assert not saver.save_if_due()
    server.connection.run(server.never.initializer)
    assert saver.save_if_due(), "another variable has a value"


def check_nothing_is_saved_without_variables():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = tf.distribute.Server({"ps": [address]}, job_name="ps", task_index=0)
    saves = SaveDirectory(directory / "nothing")
    saves.create()
    saver = StateSaver(server.target, saves, 0.0, lambda: 1 / 0, print)
    assert not saver.save_if_due() and saves.latest() is None


def check_a_full_disk_leaves_the_last_save():
    server = Server()
    server.fill()
    saver, saves, said = server.saver("full", seconds=0.0)
    assert saver.save_if_due()
    before = saves.latest()
    server.add_one()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limit[1]))
    try:
        for _ in range(2):
            saver._ended = saver._next = 0.0
            try:
                saver.save_if_due()
            except (OSError, tf.errors.OpError) as error:
                saver._handle(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert said[0] == "saved" and len(said) == 2, said
    assert "Training continues, and the last save is intact" in said[1], said
    assert saves.latest() == before
    second = Server(before)
    assert (second.read(second.weight) == 1).all()
    saver._ended = saver._next = 0.0
    assert saver.save_if_due() and said[2] == "The server's state is saved again."
    third = Server(saves.latest())
    assert (third.read(third.weight) == 2).all()


def check_damaged_values_are_refused():
    server = Server()
    server.fill()
    saver, saves, _ = server.saver("damaged")
    saver.save_if_due()
    state = saves.latest()
    (path,) = state.folder.glob("values.data*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    try:
        Server(state)
    except tf.errors.DataLossError:
        return
    raise AssertionError("damaged values were restored")


run_checks(globals())
sys.stdout.flush()
os._exit(0)  # the servers do not end
