"""Sums and exchanges of arrays over a channel, chunk by chunk.

An operation takes a channel, a list of this worker's arrays, and its `moment`: a text that
distinguishes this run of the operation from other runs, the same on all workers. It returns a list
of arrays in the channel's buffers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from strategies.collectives.shared_memory.buffers import ALIGNMENT
from strategies.collectives.shared_memory.channel import CHUNK_BYTES, Channel

# Up to this many bytes from the other workers, a second round of messages costs more than it saves.
_DIRECT_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class _Piece:
    """The elements array[start:stop] of one array in one chunk, from byte `offset` of the chunk."""

    array: int
    start: int
    stop: int
    offset: int


def sum_vectors(
    channel: Channel, arrays: Sequence[np.ndarray], moment: str = "", only_first: bool = False
) -> list[np.ndarray]:
    """Returns the sums of arrays over all workers, added in the order of ranks.

    Each worker sums short arrays completely. Of long ones, each worker sums one part of every chunk
    and copies the other parts from the workers that summed them, so that its work does not grow
    with the number of workers: a reduce-scatter and an all-gather, as in Rabenseifner's algorithm
    (Thakur et al., Optimization of Collective Communication Operations in MPICH, 2005).

    Args:
      channel: the channel among the workers.
      arrays: vectors, of the same lengths and dtypes on every worker.
      moment: see above.
      only_first: whether only the first worker gets the sums; the others get nothing.
    """
    described = tuple((array.size, array.dtype.str) for array in arrays)
    channel.begin_operation(f"{moment}sum of {described}")
    layout, chunks = _pieces(described)
    sums = _vectors(arrays, channel.buffers.take(layout[-1]), layout)
    if layout[-1] * len(channel.peers) > _DIRECT_BYTES:
        _sum_by_parts(channel, arrays, sums, _parts(described, channel.size), only_first)
    else:
        _sum_directly(channel, arrays, sums, chunks, only_first)
    return sums if channel.rank == 0 or not only_first else []


def _sum_directly(
    channel: Channel,
    arrays: Sequence[np.ndarray],
    sums: Sequence[np.ndarray],
    chunks: Sequence[Sequence[_Piece]],
    only_first: bool,
) -> None:
    """Adds up all pieces of all chunks."""
    gets_sums = channel.rank == 0 or not only_first
    # One chunk ahead; see [Note: the shared-memory protocol] in channel.py.
    if chunks:
        _write(channel, arrays, chunks[0])
    for number, pieces in enumerate(chunks):
        if number + 1 < len(chunks):
            _write(channel, arrays, chunks[number + 1])
        _sum_pieces(channel, arrays, sums, pieces if gets_sums else [])


def _sum_by_parts(
    channel: Channel,
    arrays: Sequence[np.ndarray],
    sums: Sequence[np.ndarray],
    chunks: Sequence[Sequence[Sequence[_Piece]]],
    only_first: bool,
) -> None:
    """Adds up this worker's part of each chunk, and copies the other workers' parts."""
    gets_sums = channel.rank == 0 or not only_first
    gives_sums = channel.rank > 0 or not only_first
    sent = [[piece for peer in channel.peers for piece in parts[peer]] for parts in chunks]
    _write(channel, arrays, sent[0])
    for number, parts in enumerate(chunks):
        _sum_pieces(channel, arrays, sums, parts[channel.rank])
        # Written even if nobody needs the sums: every worker must read every chunk.
        _write(channel, sums, parts[channel.rank] if gives_sums else [])
        if number + 1 < len(chunks):  # while the others add up
            _write(channel, arrays, sent[number + 1])
        for peer in channel.peers:
            _read_pieces(channel, peer, sums, parts[peer] if gets_sums else [])


def _sum_pieces(
    channel: Channel,
    arrays: Sequence[np.ndarray],
    sums: Sequence[np.ndarray],
    pieces: Sequence[_Piece],
) -> None:
    """Adds up pieces of the next chunk of all workers."""
    received = {peer: channel.begin_read(peer) for peer in channel.peers}
    for piece in pieces:
        part = slice(piece.start, piece.stop)
        total, own = sums[piece.array][part], arrays[piece.array][part]
        end = piece.offset + total.nbytes
        # In the order of ranks: floating-point addition is not associative, and all workers need
        # the same bits.
        terms = [
            own if rank == channel.rank else received[rank][piece.offset : end].view(total.dtype)
            for rank in range(channel.size)
        ]
        np.add(terms[0], terms[1], out=total)
        for term in terms[2:]:
            np.add(total, term, out=total)
    for peer in channel.peers:
        channel.end_read(peer)


def _write(channel: Channel, arrays: Sequence[np.ndarray], pieces: Sequence[_Piece]) -> None:
    chunk = channel.begin_write()
    for piece in pieces:
        part = arrays[piece.array][piece.start : piece.stop]
        chunk[piece.offset : piece.offset + part.nbytes].view(part.dtype)[:] = part
    channel.end_write()


def _read_pieces(
    channel: Channel, peer: int, targets: Sequence[np.ndarray], pieces: Sequence[_Piece]
) -> None:
    """Copies pieces of another worker's next chunk."""
    received = channel.begin_read(peer)
    for piece in pieces:
        target = targets[piece.array][piece.start : piece.stop]
        target[:] = received[piece.offset : piece.offset + target.nbytes].view(target.dtype)
    channel.end_read(peer)


def _vectors(
    like: Sequence[np.ndarray], buffer: np.ndarray, layout: Sequence[int]
) -> list[np.ndarray]:
    """Returns vectors in a buffer with the lengths and dtypes of the vectors `like`."""
    return [
        buffer[start : start + array.nbytes].view(array.dtype)
        for start, array in zip(layout, like, strict=False)
    ]


@functools.lru_cache(maxsize=256)
def _pieces(
    arrays: tuple[tuple[int, str], ...],
) -> tuple[list[int], list[list[_Piece]]]:
    """Returns the arrays' offsets in one buffer followed by its length, and each chunk's pieces."""
    starts: list[int] = []
    chunks: list[list[_Piece]] = []
    start = 0
    for number, (size, dtype) in enumerate(arrays):
        starts.append(start)
        each, done = np.dtype(dtype).itemsize, 0
        while done < size:
            chunk, offset = divmod(start + done * each, CHUNK_BYTES)
            count = min(size - done, (CHUNK_BYTES - offset) // each)
            chunks.extend([] for _ in range(chunk + 1 - len(chunks)))
            chunks[chunk].append(_Piece(number, done, done + count, offset))
            done += count
        start += -(-size * each // ALIGNMENT) * ALIGNMENT
    return [*starts, start], chunks


@functools.lru_cache(maxsize=256)
def _parts(arrays: tuple[tuple[int, str], ...], size: int) -> list[list[list[_Piece]]]:
    """Returns the pieces of each of `size` even parts of each chunk."""
    return [_split_evenly(pieces, arrays, size) for pieces in _pieces(arrays)[1]]


def _split_evenly(
    pieces: Sequence[_Piece], arrays: Sequence[tuple[int, str]], size: int
) -> list[list[_Piece]]:
    sizes = [np.dtype(arrays[piece.array][1]).itemsize for piece in pieces]
    end = pieces[-1].offset + (pieces[-1].stop - pieces[-1].start) * sizes[-1]
    # No element crosses a multiple of ALIGNMENT, so each is in one part.
    length = -(-end // (size * ALIGNMENT)) * ALIGNMENT
    parts: list[list[_Piece]] = [[] for _ in range(size)]
    for number, part in enumerate(parts):
        for piece, each in zip(pieces, sizes, strict=True):
            begin = max(piece.start, piece.start + (number * length - piece.offset) // each)
            stop = min(piece.stop, piece.start + ((number + 1) * length - piece.offset) // each)
            if begin < stop:
                offset = piece.offset + (begin - piece.start) * each
                part.append(_Piece(piece.array, begin, stop, offset))
    return parts


def gather(channel: Channel, arrays: Sequence[np.ndarray], moment: str = "") -> list[np.ndarray]:
    """Returns the workers' arrays concatenated along axis 0, by rank.

    Args:
      channel: the channel among the workers.
      arrays: one array, of which only the first dimension may differ between workers.
      moment: see above.
    """
    (array,) = arrays
    channel.begin_operation(f"{moment}all_gather of {array.dtype.str} {array.shape[1:]}")
    joined = array

    def select_pieces(headers: np.ndarray) -> list[tuple[int, np.ndarray]]:
        nonlocal joined
        rows, lengths = headers.T
        content = channel.buffers.take(int(lengths.sum()))
        joined = content.view(array.dtype).reshape(int(rows.sum()), *array.shape[1:])
        return list(zip([0] * channel.size, _split(content, lengths), strict=True))

    _exchange(channel, np.array([len(array), array.nbytes]), _content(array), select_pieces)
    return [joined]


def broadcast(channel: Channel, arrays: Sequence[np.ndarray], moment: str = "") -> list[np.ndarray]:
    """Returns the first worker's array.

    Args:
      channel: the channel among the workers.
      arrays: one array, of the same shape and dtype on every worker.
      moment: see above.
    """
    (array,) = arrays
    channel.begin_operation(f"{moment}broadcast of {array.dtype.str} {array.shape}")
    content = channel.buffers.take(array.nbytes)
    sent = _content(array) if channel.rank == 0 else content[:0]

    def select_pieces(headers: np.ndarray) -> list[tuple[int, np.ndarray]]:
        return [(0, content), *[(0, content[:0])] * (len(headers) - 1)]

    _exchange(channel, np.array([len(sent)]), sent, select_pieces)
    return [content.view(array.dtype).reshape(array.shape)]


def broadcast_vectors(
    channel: Channel, arrays: Sequence[np.ndarray], moment: str = ""
) -> list[np.ndarray]:
    """Returns the first worker's arrays; an empty list on the first worker, which has them.

    Args:
      channel: the channel among the workers.
      arrays: vectors, of the same lengths and dtypes on every worker.
      moment: see above.
    """
    described = tuple((array.size, array.dtype.str) for array in arrays)
    channel.begin_operation(f"{moment}broadcast of {described}")
    layout, chunks = _pieces(described)
    if channel.rank == 0:
        for pieces in chunks:
            _write(channel, arrays, pieces)
        return []
    copies = _vectors(arrays, channel.buffers.take(layout[-1]), layout)
    for pieces in chunks:
        _read_pieces(channel, 0, copies, pieces)
    return copies


def all_to_all(
    channel: Channel, arrays: Sequence[np.ndarray], moment: str = ""
) -> list[np.ndarray]:
    """Returns the rows that all workers sent to this one, by rank, and their number per worker.

    Args:
      channel: the channel among the workers.
      arrays: the rows to send, ordered by the receiver's rank, and the number of rows for each
        worker, [workers] int64.
      moment: see above.
    """
    array, counts = arrays
    channel.begin_operation(f"{moment}all_to_all of {array.dtype.str} {array.shape[1:]}")
    row = array.itemsize * math.prod(array.shape[1:])
    rows, received = array, counts

    def select_pieces(headers: np.ndarray) -> list[tuple[int, np.ndarray]]:
        nonlocal rows, received
        before = headers[:, : channel.rank].sum(axis=1)
        received = headers[:, channel.rank].copy()
        content = channel.buffers.take(int(received.sum()) * row)
        rows = content.view(array.dtype).reshape(int(received.sum()), *array.shape[1:])
        return list(zip((before * row).tolist(), _split(content, received * row), strict=True))

    _exchange(channel, np.array([*counts, array.nbytes]), _content(array), select_pieces)
    return [rows, received]


def _exchange(
    channel: Channel,
    header: np.ndarray,
    payload: np.ndarray,
    select_pieces: Callable[[np.ndarray], Sequence[tuple[int, np.ndarray]]],
) -> None:
    """Offers bytes to all workers, and copies the bytes that this worker needs of theirs.

    The first chunk of each worker has its header and the beginning of its payload, so most
    operations take one chunk. It is read in two parts, because which bytes of the payloads this
    worker needs depends on all headers. So `end_read` is called for it in the first round below.

    Args:
      channel: the channel among the workers.
      header: [n] int64, of the same length on every worker; the last number is the length of the
        payload.
      payload: the bytes that this worker offers.
      select_pieces: takes all headers, [workers, n]; returns for each worker the position of the
        first byte that this worker needs of its payload, and the array to copy to.
    """
    space = CHUNK_BYTES - header.nbytes
    chunk = channel.begin_write()
    chunk[: header.nbytes].view(np.int64)[:] = header
    first = payload[:space]
    chunk[header.nbytes : header.nbytes + len(first)] = first
    channel.end_write()
    received = [
        chunk if rank == channel.rank else channel.begin_read(rank) for rank in range(channel.size)
    ]
    headers = np.stack([chunk[: header.nbytes].view(np.int64) for chunk in received])
    wanted = select_pieces(headers)
    start, target = wanted[channel.rank]
    target[:] = payload[start : start + len(target)]
    lengths = headers[:, -1]
    # The same number of rounds on all workers, so that each reads all chunks of the others.
    rounds = 1 + -(-max(int(lengths.max()) - space, 0) // CHUNK_BYTES)
    for number in range(rounds):
        low = 0 if number == 0 else space + (number - 1) * CHUNK_BYTES
        high = low + (space if number == 0 else CHUNK_BYTES)
        if number and low < len(payload):
            part = payload[low:high]
            channel.begin_write()[: len(part)] = part
            channel.end_write()
        for peer in channel.peers:
            if number and low >= lengths[peer]:
                continue
            chunk = channel.begin_read(peer) if number else received[peer][header.nbytes :]
            start, target = wanted[peer]
            begin, end = max(start, low), min(start + len(target), high)
            if begin < end:
                target[begin - start : end - start] = chunk[begin - low : end - low]
            channel.end_read(peer)


def _content(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _split(content: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(content, np.cumsum(lengths)[:-1])
