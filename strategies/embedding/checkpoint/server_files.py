"""Files of rows that the parameter servers write themselves, so that no row crosses the network.

One worker saves the rows of each server. It asks the server for the ids and the numbers of the
rows, and writes the ids. Of each chunk of rows, the server gathers the values, slot variables and
metadata, and writes them to files in the directory of the save. For this, the server must see the
directory under the same path. Otherwise, for example if only workers mount it, the server's rows
are sent to the worker, which writes them.

Each chunk has files of its own, because TensorFlow's operations write a file as a whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

from absl import logging

from strategies.embedding.checkpoint import array_specs, npy_stream, snapshot
from strategies.embedding.checkpoint.npy_stream import NpyWriter
from strategies.embedding.checkpoint.part_files import PartFiles, path_of
from strategies.embedding.checkpoint.snapshot import RowChunk
from strategies.embedding.shard.server_writer import ServerWriter
from strategies.embedding.shard.table_shard import TableShard
from strategies.files.atomic_files import flush_to_disk

# The server's lock is held while so many bytes are gathered, but not while they are written.
_CHUNK_BYTES = 1 << 26
# Characters that TensorFlow does not take literally when it looks for a file.
_PATTERN = frozenset("*?[]\\")


class ServerFiles:
    """The files that servers write for one worker in a folder of a save.

    Args:
      part: the files of the worker, in a folder that exists.
      shards: the shards that the worker saves.
    """

    def __init__(self, part: PartFiles, shards: Sequence[TableShard]):
        self._part = part
        self._folder = part.folder.resolve()
        self._count = 0
        writers = {shard.index: shard.writer for shard in shards if shard.writer is not None}
        self._writers = self._seeing(writers) if writers else {}

    def _seeing(self, writers: dict[int, ServerWriter]) -> dict[int, ServerWriter]:
        """Returns the writers of the servers that see the folder."""
        content, seeing = secrets.token_hex(8).encode(), {}
        token = self._folder / f"seen-by-servers-of-{self._part.rank}"
        if not _PATTERN & set(str(self._folder)):
            token.write_bytes(content)
            try:
                seeing = {n: each for n, each in writers.items() if each.sees(token, content)}
            finally:
                token.unlink()
        if len(seeing) < len(writers):
            names = ", ".join(f"ps {number}" for number in sorted(set(writers) - set(seeing)))
            logging.log_first_n(
                logging.WARNING,
                "Worker %d writes the rows of %s, which cross the network for it. For a server to "
                "write its rows itself, the directory must have the same path there, without any "
                "of the characters *?[]\\. Received: %s.",
                1, self._part.rank, names, self._folder,
            )  # fmt: skip
        return seeing

    def chunk_bytes(self, shard: TableShard) -> int:
        """Returns the size of the chunks in which the rows of a shard are written."""
        return _CHUNK_BYTES if shard.index in self._writers else snapshot.CHUNK_BYTES

    def append(self, files: NpyWriter, position: int, chunk: RowChunk) -> None:
        """Writes a chunk of rows, on its server if possible.

        Args:
          files: the worker's own files of the table.
          position: the position of the table.
          chunk: the chunk.

        Raises:
          OSError: if a file cannot be written.
        """
        writer = self._writers.get(chunk.shard.index)
        if writer is None or not len(chunk.ids):
            files.append(chunk.arrays())
            return
        if not files.has("ids"):  # the part of a worker that saves a shard has all arrays
            files.append(chunk.without_rows().arrays())
        if chunk.present is not None:
            files.append({array_specs.PRESENT: chunk.present})
        self._write(writer, position, chunk)

    def _write(self, writer: ServerWriter, position: int, chunk: RowChunk) -> None:
        self._count += 1
        part = f"{self._part.rank}.{self._count}"
        path = path_of(self._folder, position, part, "ids")
        with NpyWriter(partial(path_of, self._folder, position, part)) as files:
            files.append({"ids": chunk.ids})
        self._part.sums[path.name] = (path.stat().st_size, npy_stream.checksum(path))
        columns = chunk.columns()
        specs = array_specs.specs(chunk.table, ["ids", *columns])
        count = len(chunk.ids)
        headers = [
            npy_stream.header(dtype, (count, *(size or 0 for size in shape[1:])))
            for dtype, shape in (specs[key] for key in columns)
        ]
        paths = [path_of(self._folder, position, part, key) for key in columns]
        try:
            hashes = writer.write(
                chunk.reader(columns),
                chunk.numbers,
                paths=paths,
                headers=headers,
                state=chunk.state,
            )
        except OSError as error:
            raise OSError(f"ps {chunk.shard.index} cannot write its rows: {error}") from error
        for path, value in zip(paths, hashes, strict=True):
            flush_to_disk(path)
            self._part.sums[path.name] = (path.stat().st_size, value)
