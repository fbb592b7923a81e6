"""An archive: the events of one sealed segment as a Parquet file with zstd, which any reader of Parquet files reads.

    archives/events-00000003-1025-4711.parquet     segment, first and last seq

Columns: seq, event_id, tenant, session_id, ts (µs, UTC), kind, actor, scope, channel, project, trace_id, request_id,
content_hash (sha256 of the content), tags (list), meta (JSON), content. The metadata of the file has `bulkhead.archive`
(version of the format), `bulkhead.identity` (of the data directory) and `bulkhead.digest`.

It is written under another name, read back, compared with what was given, made durable and then named. What was not
sealed is removed by the next beginning.

Imported by the first function that needs it: PyArrow takes a moment, and most lives of the worker write no archive.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from actors.errors import BuildFailed, NotFound, Quarantined
from actors.generation import fsync_directory
from actors.generation_builder.faults import storage_errors
from actors.messages.archives import ArchiveFile

FORMAT = "1"
BLOCK_BYTES = 1024 * 1024
_TEMPORARY = ".tmp"
_BATCH_ROWS = 2000
SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("event_id", pa.string()),
        ("tenant", pa.string()),
        ("session_id", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("kind", pa.string()),
        ("actor", pa.string()),
        ("scope", pa.string()),
        ("channel", pa.string()),
        ("project", pa.string()),
        ("trace_id", pa.string()),
        ("request_id", pa.string()),
        ("content_hash", pa.binary(32)),
        ("tags", pa.list_(pa.string())),
        ("meta", pa.string()),
        ("content", pa.string()),
    ]
)
_rows = msgspec.msgpack.Decoder(list[dict[str, Any]])
_tags = msgspec.json.Decoder(list[str])


class ArchiveWriter:
    """One archive under way. `folder` is that of the archives."""

    def __init__(self, folder: Path, number: int, identity: str) -> None:
        """Begin the file, in the place of what was left of another one."""
        self._folder = folder
        self._number = number
        self._path = folder / f"{number:08}{_TEMPORARY}"
        self._digest = Digest()
        with storage_errors("beginning an archive"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_unfinished(folder)
            metadata = {"bulkhead.archive": FORMAT, "bulkhead.identity": identity}
            self._writer = pq.ParquetWriter(self._path, SCHEMA.with_metadata(metadata), compression="zstd")

    def add(self, rows: bytes) -> None:
        """Add the rows of a page: msgpack, a list of maps by the names of the columns, tags as JSON."""
        found = _rows.decode(rows)
        for row in found:
            self._digest.add(row["seq"], row["event_id"], row["content_hash"], row["ts"])
            row["tags"] = _tags.decode(row["tags"])
        with storage_errors("writing an archive"):
            self._writer.write_batch(pa.RecordBatch.from_pylist(found, schema=SCHEMA))

    def seal(self, check: Callable[[], None]) -> ArchiveFile:
        """End the file, read it back and name it; durable on return. Raises BuildFailed when it is not what was given.

        `check` is called between batches and may raise to stop.
        """
        with storage_errors("sealing an archive"):
            self._writer.add_key_value_metadata({"bulkhead.digest": self._digest.hex()})
            self._writer.close()
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
            found = read_back(self._path, check)
            if found.hex() != self._digest.hex():
                raise BuildFailed(f"archive {self._path.name} refused: it does not hold what was written to it")
            first, last = self._digest.first_seq, self._digest.last_seq
            path = self._folder / f"events-{self._number:08}-{first}-{last}.parquet"
            self._path.replace(path)
            fsync_directory(self._folder)
            return ArchiveFile(
                name=path.name,
                bytes=path.stat().st_size,
                sha256=file_hash(path, check),
                digest=self._digest.hex(),
                rows=self._digest.rows,
                first_seq=first,
                last_seq=last,
                first_ts=self._digest.first_ts,
                last_ts=self._digest.last_ts,
            )

    def drop(self) -> None:
        """Give it up."""
        self._writer.close()
        self._path.unlink(missing_ok=True)


class Digest:
    """A hash over events, in order, and what they have in common."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.rows = 0
        self.first_seq = self.last_seq = 0
        self.first_ts = self.last_ts = 0

    def add(self, seq: int, event_id: str, content_hash: bytes, ts: int) -> None:
        """Add an event; `ts` in µs."""
        self._hash.update(f"{seq} {ts} {event_id}\n".encode() + content_hash)
        if not self.rows:
            self.first_seq, self.first_ts, self.last_ts = seq, ts, ts
        self.last_seq = seq
        self.first_ts, self.last_ts = min(self.first_ts, ts), max(self.last_ts, ts)
        self.rows += 1

    def hex(self) -> str:
        """Return the hash of all of them."""
        return self._hash.hexdigest()


def read_back(path: Path, check: Callable[[], None]) -> Digest:
    """Read a file and compare every content with its hash; return the digest. Raises BuildFailed, Arrow's errors."""
    digest = Digest()
    for seq, event_id, content_hash, ts, content in _events(path, check):
        if hashlib.sha256(content.encode()).digest() != content_hash:
            raise BuildFailed(f"archive {path.name}: event {seq} does not say what its hash was made of")
        digest.add(seq, event_id, content_hash, ts)
    return digest


def verify(folder: Path, archive: ArchiveFile, check: Callable[[], None]) -> None:
    """Compare a file with what was sealed. Raises NotFound and Quarantined."""
    path = folder / archive.name
    if path.parent != folder or not path.is_file():
        raise NotFound(f"there is no archive {archive.name!r} in {str(folder)!r}", hint="restore it from a backup")
    if file_hash(path, check) != archive.sha256:
        raise Quarantined(f"archive {archive.name!r} is not what was sealed", hint="restore it from a backup")
    with storage_errors("reading an archive"):
        if read_back(path, check).hex() != archive.digest:
            raise Quarantined(
                f"archive {archive.name!r} does not hold what was sealed", hint="restore it from a backup"
            )


def file_hash(path: Path, check: Callable[[], None]) -> str:
    """Return the sha256 of a file in hex."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            check()
            found.update(block)
    return found.hexdigest()


def remove_unfinished(folder: Path) -> None:
    """Remove what was begun and not sealed."""
    for path in folder.glob(f"*{_TEMPORARY}"):
        path.unlink(missing_ok=True)


def _events(path: Path, check: Callable[[], None]) -> Iterator[tuple[int, str, bytes, int, str]]:
    with pq.ParquetFile(path) as file:
        columns = ["seq", "event_id", "content_hash", "ts", "content"]
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            check()
            ts = batch.column("ts").cast(pa.int64())
            names = ("seq", "event_id", "content_hash")
            yield from zip(
                *(batch.column(name).to_pylist() for name in names),
                ts.to_pylist(),
                batch.column("content").to_pylist(),
                strict=True,
            )
