"""The rebuild of the one file's index, in a process of its own: a shadow beside it, then one transaction.

`python -m bench.incident.reindex SPEC` prints when what happened, as JSON. The shadow is built from the notes with the
vectors of the embedding cache (what is not there is embedded) while everybody works on. The publication is the
incident's: one IMMEDIATE transaction that copies sources, chunks, embedding cache, full text and vectors into the file.
"""

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import msgspec
import numpy as np

from actors.generation_builder.chunk import Chunk, ChunkLimits, chunk_markdown
from actors.notes import encoding_of, open_note, segments
from actors.settings import GenerationBuilderSettings
from bench.incident.results import Rebuild
from bench.incident.single_file import BEGIN, INDEX, SEARCHED, connect, lock_path
from chaos.vectors import MODEL, Vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

JSON, BLOB = "json", "blob"

FROM_CACHE = "SELECT embedding FROM embedding_cache WHERE model = ? AND hash = ?"
ADD_SOURCE = "INSERT INTO sources VALUES (?, ?, ?, ?)"
ADD_CHUNK = "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_CACHED = "INSERT OR REPLACE INTO embedding_cache VALUES (?, ?, ?, ?, ?)"
ADD_WORDS = "INSERT INTO chunks_fts (text, id) VALUES (?, ?)"
ADD_VECTOR = "INSERT INTO chunks_vec (id, embedding) VALUES (?, ?)"
PUBLISH = (
    "DELETE FROM main.sources",
    "INSERT INTO main.sources SELECT * FROM shadow.sources",
    "DELETE FROM main.chunks",
    "INSERT INTO main.chunks SELECT * FROM shadow.chunks",
    "INSERT OR REPLACE INTO main.embedding_cache SELECT * FROM shadow.embedding_cache",
    "DROP TABLE main.chunks_fts",
    "DROP TABLE main.chunks_vec",
    SEARCHED,
    "INSERT INTO main.chunks_fts (text, id) SELECT text, id FROM shadow.chunks_fts",
    "INSERT INTO main.chunks_vec (id, embedding) SELECT id, embedding FROM shadow.chunks_vec",
)


class ReindexSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to rebuild from what. `stored` is how a vector lies in a row: "json" text, or "blob" of float64."""

    database: str
    notes: str
    dimensions: int
    stored: str = JSON


def reindex(spec: ReindexSpec) -> Rebuild:
    """Rebuild the index and publish it."""
    began = time.monotonic()
    shadow = f"{spec.database}.memory-reindex"
    Path(shadow).unlink(missing_ok=True)  # of a rebuild that was killed
    _Shadow(spec, shadow).build()
    publish_s = publish(spec, shadow)
    Path(shadow).unlink()
    return Rebuild(begin=began, end=time.monotonic(), publish_s=publish_s)


class _Shadow:
    """The new index, in a file of its own that nobody else knows of."""

    def __init__(self, spec: ReindexSpec, path: str) -> None:
        self._spec = spec
        self._live = connect(spec.database)
        self._shadow = connect(path)
        # It is thrown away after a crash, so it needs no journal and no fsync.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            self._shadow.execute(f"PRAGMA {pragma}").fetchall()
        self._shadow.execute((INDEX + SEARCHED).format(where="main", dimensions=spec.dimensions))
        self._model: Vectors | None = None

    def build(self) -> None:
        """Index every note."""
        self._shadow.execute("BEGIN")
        for path in sorted(Path(self._spec.notes).rglob("*.md")):
            self._add(path)
        self._shadow.execute("COMMIT")
        self._shadow.close()
        self._live.close()

    def _add(self, path: Path) -> None:
        now, name = time.time_ns() // 1_000_000, path.name
        chunks, words, vectors, cached = [], [], [], []
        for chunk in read(path):
            hashed = hashlib.sha256(chunk.text.encode()).hexdigest()
            place = f"{name}:{chunk.from_line}:{chunk.to_line}:{hashed}:{MODEL}"
            identifier = hashlib.sha256(place.encode()).hexdigest()
            stored, vector = self._vector(hashed, chunk.text)
            chunks.append(
                (identifier, name, chunk.from_line, chunk.to_line, hashed, MODEL, chunk.text, stored, now),
            )
            words.append((chunk.text, identifier))
            vectors.append((identifier, vector.astype(np.float32).tobytes()))
            cached.append((MODEL, hashed, stored, self._spec.dimensions, now))
        status = path.stat()
        source = (name, hashlib.sha256(path.read_bytes()).hexdigest(), status.st_mtime, status.st_size)
        self._shadow.execute(ADD_SOURCE, source)
        self._shadow.executemany(ADD_CHUNK, chunks)
        self._shadow.executemany(ADD_WORDS, words)
        self._shadow.executemany(ADD_VECTOR, vectors)
        self._shadow.executemany(ADD_CACHED, cached)

    def _vector(self, hashed: str, text: str) -> tuple[str | bytes, "NDArray[np.float64]"]:
        """Return the vector of a text, as it is stored and as numbers."""
        row = self._live.execute(FROM_CACHE, (MODEL, hashed)).fetchone()
        if row is not None:
            return row[0], loaded(row[0])
        self._model = self._model or Vectors(self._spec.dimensions)
        vector = self._model.of(text)
        return dumped(vector, self._spec.stored), vector


def read(path: Path) -> Iterator[Chunk]:
    """Yield the chunks of a note, cut as Bulkhead cuts them."""
    settings = GenerationBuilderSettings()
    with open_note(str(path)) as file:
        encoding = encoding_of(file, lambda: None)
        yield from chunk_markdown(
            segments(file, encoding), ChunkLimits(settings.chunk_tokens, settings.chunk_tokens_max)
        )


def dumped(vector: "NDArray[np.float64]", stored: str) -> str | bytes:
    """Return a vector as it lies in a row."""
    return msgspec.json.encode(vector.tolist()).decode() if stored == JSON else vector.astype("<f8").tobytes()


def loaded(stored: str | bytes) -> "NDArray[np.float64]":
    """Return a stored vector as numbers."""
    if isinstance(stored, bytes):
        return np.frombuffer(stored, "<f8")
    return np.asarray(msgspec.json.decode(stored, type=list[float]))


def publish(spec: ReindexSpec, shadow: str) -> float:
    """Copy the shadow into the file; return for how many seconds that held the write lock."""
    connection = connect(spec.database)
    connection.execute("ATTACH ? AS shadow", (shadow,))
    lock = os.open(lock_path(spec.database), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    begin(connection)
    began = time.monotonic()
    for statement in PUBLISH:
        connection.execute(statement.format(where="main", dimensions=spec.dimensions))
    connection.execute("COMMIT")
    held_s = time.monotonic() - began
    os.close(lock)
    connection.execute("DETACH shadow")
    connection.close()
    return held_s


def begin(connection: apsw.Connection) -> None:
    """Begin the transaction, however long writers keep it from that."""
    while True:
        try:
            connection.execute(BEGIN)
            return
        except apsw.BusyError:
            continue


if __name__ == "__main__":
    print(msgspec.json.encode(reindex(msgspec.json.decode(sys.argv[1], type=ReindexSpec))).decode())
