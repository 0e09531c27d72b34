"""Reads the records of a file in one pass with little memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tf_config.errors import ClusterConfigError, quoted
from tf_config.sharding.crc32c import masked_crc32c

# A part of a record, and whether it is the last one. A record may be larger than the memory.
Piece = tuple[bytes, bool]

_MOST_BYTES = 1 << 20
_HEADER_BYTES = 12  # the length in 8, its checksum in 4
_FOOTER_BYTES = 4  # the data's checksum
_TFRECORD_NAME = re.compile(r"[._-]tfrec(ord)?s?(?![a-z])", re.IGNORECASE)


def lines(file: BinaryIO, path: Path) -> Iterator[Piece]:
    r"""Yields the lines of a text, in any encoding in which line breaks end with the byte `\n`.

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

    The checksum of each length is verified, because after a wrong length, the next record cannot be
    found. The checksum of the data is not verified, but copied with the record.

    Raises:
      ClusterConfigError: if a length is corrupt, or the last record is incomplete.
    """
    position = 0
    while header := file.read(_HEADER_BYTES):
        if len(header) < _HEADER_BYTES:
            raise _truncated_error(path, position)
        if not is_header(header):
            raise ClusterConfigError(
                "A TFRecord must begin with its length and the checksum of the length. Received: "
                f"{quoted(str(path))}, which has neither at byte {position}. Get a complete copy "
                "of the file, or set --format."
            )
        yield header, False
        size = left = int.from_bytes(header[:8], "little") + _FOOTER_BYTES
        while left:
            data = file.read(min(left, _MOST_BYTES))
            if not data:
                raise _truncated_error(path, position)
            left -= len(data)
            yield data, not left
        position += _HEADER_BYTES + size


FORMATS: Mapping[str, Callable[[BinaryIO, Path], Iterator[Piece]]] = {
    "text": lines,
    "tfrecord": tfrecords,
}


@functools.lru_cache(
    maxsize=1 << 12
)  # the records of a file often have only a few different lengths
def is_header(data: bytes) -> bool:
    """Returns whether `data` is a TFRecord's header: a length and its checksum."""
    length, checksum = data[:8], data[8:]
    return len(data) == _HEADER_BYTES and masked_crc32c(length) == int.from_bytes(
        checksum, "little"
    )


def guess_format(head: bytes, path: Path) -> str:
    """Returns the format of the file `path`, which begins with `head`.

    Raises:
      ClusterConfigError: if the file is neither text nor TFRecords.
    """
    # The name is also considered, so that a file whose first length is corrupt is reported as such.
    if is_header(head[:_HEADER_BYTES]) or _TFRECORD_NAME.search(path.name):
        return "tfrecord"
    if b"\0" in head:
        raise ClusterConfigError(
            "An input must consist of lines of text or of TFRecords, optionally compressed with "
            f"gzip. Received: {quoted(str(path))}, which contains zero bytes and does not begin "
            "with a TFRecord. Convert it (for example, UTF-16 to UTF-8), or set --format."
        )
    return "text"


def _truncated_error(path: Path, position: int) -> ClusterConfigError:
    return ClusterConfigError(
        f"A file of TFRecords must end where a record ends. Received: {quoted(str(path))}, whose "
        f"record at byte {position} is truncated. Get a complete copy of the file."
    )
