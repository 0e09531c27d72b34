"""The records of a file, read in one pass with little memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tf_config.errors import ClusterConfigError, quoted
from tf_config.sharding.crc32c import masked_crc32c

# A part of a record, and whether it is the last part. A record may be larger than memory.
Piece = tuple[bytes, bool]

_MOST_BYTES = 1 << 20
_HEADER_BYTES = 12  # the length in 8, its checksum in 4
_FOOTER_BYTES = 4  # the data's checksum
_TFRECORD_NAME = re.compile(r"[._-]tfrec(ord)?s?(?![a-z])", re.IGNORECASE)


def lines(file: BinaryIO, path: Path) -> Iterator[Piece]:
    r"""Yields the lines of a text in any encoding whose line breaks end with the byte `\n`.

    >>> import io
    >>> list(lines(io.BytesIO(b"a\r\nb"), Path("x")))
    [(b'a\r\n', True), (b'b', False), (b'\n', True)]
    """
    ends = True
    while data := file.readline(_MOST_BYTES):
        ends = data.endswith(b"\n")
        yield data, ends
    if not ends:
        yield b"\n", True


def tfrecords(file: BinaryIO, path: Path) -> Iterator[Piece]:
    """Yields the TFRecords of a file, including their framing.

    The checksum of each length is checked, because a wrong length would hide the next record. The
    checksum of the data is copied with the record and left to its reader.

    Raises:
      ClusterConfigError: if a length is damaged, or the last record is cut off.
    """
    position = 0
    while header := file.read(_HEADER_BYTES):
        if len(header) < _HEADER_BYTES:
            raise _cut_off(path, position)
        if not is_header(header):
            raise ClusterConfigError(
                "A TFRecord must begin with its length and the checksum of the length. Received: "
                f"{quoted(str(path))}, which has none at byte {position}. Get a complete copy of "
                "the file, or set --format."
            )
        yield header, False
        size = left = int.from_bytes(header[:8], "little") + _FOOTER_BYTES
        while left:
            data = file.read(min(left, _MOST_BYTES))
            if not data:
                raise _cut_off(path, position)
            left -= len(data)
            yield data, not left
        position += _HEADER_BYTES + size


FORMATS: Mapping[str, Callable[[BinaryIO, Path], Iterator[Piece]]] = {
    "text": lines,
    "tfrecord": tfrecords,
}


@functools.lru_cache(maxsize=1 << 12)  # records of one file often have the same few lengths
def is_header(data: bytes) -> bool:
    """Returns whether `data` is a TFRecord's header: a length and its checksum."""
    length, checksum = data[:8], data[8:]
    return len(data) == _HEADER_BYTES and masked_crc32c(length) == int.from_bytes(
        checksum, "little"
    )


def guess(head: bytes, path: Path) -> str:
    """Returns the format of a file that begins with `head`.

    Raises:
      ClusterConfigError: if the file is neither text nor TFRecords.
    """
    # The name counts, too, so that a file whose first length is damaged is reported as damaged.
    if is_header(head[:_HEADER_BYTES]) or _TFRECORD_NAME.search(path.name):
        return "tfrecord"
    if b"\0" in head:
        raise ClusterConfigError(
            "An input must be text in lines, or TFRecords; either may be compressed by gzip. "
            f"Received: {quoted(str(path))}, which contains zero bytes and does not begin with a "
            "TFRecord. Convert it (UTF-16 to UTF-8, for example), or set --format."
        )
    return "text"


def _cut_off(path: Path, position: int) -> ClusterConfigError:
    return ClusterConfigError(
        f"A file of TFRecords must end where a record ends. Received: {quoted(str(path))}, whose "
        f"record from byte {position} on is cut off. Get a complete copy of the file."
    )
