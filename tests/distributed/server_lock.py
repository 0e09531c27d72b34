"""Interrupts what a server does under its locks; prints what its workers find then."""

import functools
import os
import socket
import sys
import threading
import time

import tensorflow as tf

from strategies.ps.barrier import Barrier
from strategies.ps.connection import ServerConnection, ServerUnavailableError
from strategies.ps.membership import worker_states
from strategies.ps.sequence_number import SequenceNumber
from tf_config import Address

with socket.create_server(("127.0.0.1", 0)) as free:
    address = Address("127.0.0.1", free.getsockname()[1])
task = {"ps": [str(address)]}
process = tf.distribute.Server(task, job_name="ps", task_index=0)
server = ServerConnection(0, address)


def interrupted(operation, feeds=None, of=server):
    """Runs an operation, and has it cancelled after a second, as when a connection breaks."""
    options = tf.compat.v1.RunOptions(timeout_in_ms=1000)
    try:
        of._session.run(operation, feeds, options=options)
    except (tf.errors.DeadlineExceededError, tf.errors.CancelledError):
        return "interrupted"
    return "completed"


def run(*arguments, **options):
    try:
        return server.run(*arguments, **options)
    except ServerUnavailableError as error:
        return error


with server.building():
    queue = tf.queue.FIFOQueue(9, [tf.int64], shared_name="never_filled")
    fill = queue.enqueue(1)
    number = tf.compat.v1.placeholder(tf.int64, [])
    counts = [tf.Variable(0, dtype=tf.int64, name=f"count_{each}") for each in range(2)]
    initialize = [each.initializer for each in counts]
    calls = SequenceNumber()


def add(between=tuple):
    counts[0].assign_add(1)
    between()
    counts[1].assign_add(1)
    return []


waiting, _ = server.locked(lambda: [queue.dequeue()], changes=False)
change, _ = server.locked(add)
change_once, _ = server.locked(lambda: calls.change_once(number, add) or [])
half, _ = server.locked(lambda: add(between=queue.dequeue))
_, values = server.locked(lambda: [each.read_value() for each in counts], changes=False)
run(initialize)

print("a read:", interrupted(waiting), run(change), run(values))
holder = threading.Thread(target=run, args=[waiting])
holder.start()
time.sleep(1)
came = interrupted(change)
run(fill)
holder.join()
print("a change before it has the lock:", came, run(values))
for each in (1, 1, 2, 1):
    run(change_once, {number: each})
print("a change made twice:", run(values))
print("half a change:", interrupted(half))
print("a read after it:", run(values))
print("a change after it:", run(change))

run(server.build_once(functools.partial(worker_states, 2)).initializer)
barriers = []
connections = server, ServerConnection(0, address)
for rank, each in enumerate(connections):

    def combine(inputs):
        queue = tf.queue.FIFOQueue(9, [tf.int64], shared_name="never_filled")
        return [[queue.dequeue() + inputs[0]], [inputs[1]]]

    barriers.append(Barrier(each, "meeting", rank, 2, tf.int64, 0, combine, [tf.int64]))


waited = []


def wait():
    try:
        waited.append(barriers[0](1))
    except ServerUnavailableError as error:
        waited.append(error)


waiter = threading.Thread(target=wait)
waiter.start()
time.sleep(1)
last = barriers[1]
arrival = last._deposit, {last._feed: 1, last._number: 1}, connections[1]
print("the last to arrive:", interrupted(*arrival))
waiter.join()
print("a worker that waits at the barrier:", *waited)
sys.stdout.flush()
os._exit(0)  # what was interrupted may wait for the server, which ends with this process
