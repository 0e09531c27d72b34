"""Sums and exchanges through shared memory, among workers that are threads of this process."""

import errno
import gc
import os
import subprocess
import sys
import threading
import unittest.mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.collectives.base import OperationsDifferError
from strategies.collectives.shared_memory import transfers
from strategies.collectives.shared_memory.buffers import ALIGNMENT, BufferPool
from strategies.collectives.shared_memory.channel import CHUNK_BYTES
from strategies.collectives.shared_memory.host import Host, WorkerEndedError
from strategies.collectives.shared_memory.memory import OwnMemory, PeerMemory, is_supported

pytestmark = pytest.mark.skipif(
    not is_supported(), reason="shared memory is for Linux on x86-64, with Python 3.9"
)


def on_threads(size, work, runs=1):
    """Returns what `work` returns in each of so many threads, given its channel and rank."""
    memories = [OwnMemory() for _ in range(size)]
    results = [None] * size

    def run(rank):
        peers = {
            other: PeerMemory(os.getpid(), memories[other].number)
            for other in range(size)
            if other != rank
        }
        names = [f"worker {number}" for number in range(size)]
        channel = Host(rank, names, [0], memories[rank], peers, rank == 0).new_channel()
        results[rank] = [work(channel, rank) for _ in range(runs)][-1]

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


LENGTHS = st.sampled_from([0, 1, 15, 1000, CHUNK_BYTES // 4, CHUNK_BYTES // 4 + 1, 700_001])


@pytest.mark.parametrize("direct_bytes", [0, 1 << 40], ids=["by parts", "directly"])
@settings(max_examples=25)
@given(size=st.integers(2, 5), lengths=st.lists(LENGTHS, min_size=1, max_size=4))
def test_sums_are_added_up_in_the_order_of_the_workers(direct_bytes, size, lengths):
    dtypes = [np.float32, np.int64, np.float16, np.float64]
    random = np.random.default_rng(0)
    arrays = [
        [(100 * random.random(n)).astype(t) for n, t in zip(lengths, dtypes, strict=False)]
        for _ in range(size)
    ]

    def work(channel, rank):
        sums = transfers.sum_vectors(channel, arrays[rank])
        of_first = transfers.sum_vectors(channel, arrays[rank], only_first=True)
        copies = transfers.broadcast_vectors(channel, of_first or arrays[rank])
        return sums, copies or of_first

    with unittest.mock.patch.object(transfers, "_DIRECT_BYTES", direct_bytes):
        found_by_rank = on_threads(size, work, runs=2)
    for number, array in enumerate(arrays[0]):
        expected = array.copy()
        for rank in range(1, size):
            expected += arrays[rank][number]
        for found in found_by_rank:
            assert [sums[number].tobytes() for sums in found] == [expected.tobytes()] * 2


@settings(max_examples=25)
@given(size=st.integers(2, 4), data=st.data())
def test_every_worker_gets_all_rows_or_its_own(size, data):
    counts = data.draw(
        st.lists(
            st.lists(st.sampled_from([0, 1, 1000, 90_000]), min_size=size, max_size=size),
            min_size=size,
            max_size=size,
        )
    )
    rows = [
        np.concatenate([np.full([n, 3], 10 * rank + to) for to, n in enumerate(counts[rank])])
        for rank in range(size)
    ]

    def work(channel, rank):
        (gathered,) = transfers.gather(channel, [rows[rank]])
        mine = transfers.all_to_all(channel, [rows[rank], np.array(counts[rank])])
        (first,) = transfers.broadcast(channel, [rows[0] + rank])
        return gathered, *mine, first

    for rank, (gathered, mine, received, first) in enumerate(on_threads(size, work, runs=2)):
        np.testing.assert_array_equal(gathered, np.concatenate(rows))
        assert received.tolist() == [counts[sender][rank] for sender in range(size)]
        expected = [np.full([counts[s][rank], 3], 10 * s + rank) for s in range(size)]
        np.testing.assert_array_equal(mine, np.concatenate(expected))
        np.testing.assert_array_equal(first, rows[0])


def test_workers_in_different_operations_raise_and_name_them():
    def work(channel, rank):
        transfers.sum_vectors(channel, [np.ones(3)])
        messages = []
        for values in (np.ones(3 + rank), np.ones(3)):  # and so they do from then on
            with pytest.raises(OperationsDifferError) as raised:
                transfers.sum_vectors(channel, [values], moment="in step 7: ")
            messages.append(str(raised.value))
        return messages

    for rank, messages in enumerate(on_threads(2, work)):
        assert f"'in step 7: sum of (({3 + rank}, '<f8'),)' on worker {rank}" in messages[0] or (
            f"\"in step 7: sum of (({3 + rank}, '<f8'),)\" on worker {rank}" in messages[0]
        )
        assert messages[0] == messages[1]


def test_results_that_are_held_are_not_overwritten():
    buffers = BufferPool()
    held = buffers.take(1000)[8:16].view(np.int64)
    held[:] = 7
    others = [buffers.take(1000) for _ in range(20)]
    for other in others:
        other[:] = 0
    assert held.tolist() == [7]
    assert all(other.ctypes.data % ALIGNMENT == 0 for other in others)
    del other, others
    before = buffers.take(1000).ctypes.data
    assert buffers.take(1000).ctypes.data == before, "what nobody holds is used again"


@pytest.mark.processes
def test_a_worker_that_has_ended_is_named():
    code = (
        "import sys; from strategies.collectives.shared_memory.memory import OwnMemory\n"
        "memory = OwnMemory(); print(memory.number, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        peer = PeerMemory(process.pid, int(process.stdout.readline()))
        process.kill()
    names = ["worker 0", "worker 1"]
    channel = Host(0, names, [0], OwnMemory(), {1: peer}, True).new_channel()
    with pytest.raises(WorkerEndedError, match="worker 1 has ended while worker 0 waits for it"):
        transfers.sum_vectors(channel, [np.ones(3)])


def test_where_one_may_have_no_memory_none_shares_any(monkeypatch):
    refuse = OSError(errno.EFBIG, "File too large")
    monkeypatch.setattr(os, "ftruncate", lambda *args: (_ for _ in ()).throw(refuse))
    told = []
    assert Host.discover(0, ["worker 0"], lambda mine: told.append(mine) or [mine]) is None
    assert told == [b""]


def test_nothing_has_a_name_that_could_be_left_behind():
    before = os.listdir("/dev/shm")
    memory = OwnMemory()
    memory.map(0, 4096)[0] = 1
    assert os.listdir("/dev/shm") == before


def test_a_block_has_no_open_file_once_it_is_deleted():
    def count():
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # what other tests have left must not be closed meanwhile
    before = count()
    memory = OwnMemory()
    peer = PeerMemory(os.getpid(), memory.number)
    part = peer.map(0, 4096)
    assert count() > before
    memory.map(0, 4096)[0] = 7
    del memory, peer
    assert part[0] == 7  # what is mapped stays
    with pytest.raises(OSError, match="No such file"):
        PeerMemory(os.getpid(), 1 << 20)
    part.close()
    assert count() == before
