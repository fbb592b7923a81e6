"""The other side: one SQLite file for everything, as the incident describes it, and a client of it.

Written as well as that design allows: WAL, fsync before an acknowledgement, short transactions, prepared statements,
page cache, every connection with one thread, the rebuild in another process than the conversation. What is the
incident's: the file holds sessions, transcript, approvals, chunks, full text, vectors (sqlite-vec) and the embedding
cache; a writer waits 5 s for the lock; a search waits for a publication, gives up after 15 s, and the failure is then
answered again for 60 s without a look at the index.

Uses apsw and sqlite-vec (extra `dev`): not every Python lets its sqlite3 load an extension.
"""

import fcntl
import http.client
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import apsw
import msgspec
import numpy as np
import sqlite_vec

from bench.incident.memory import Refused
from bench.incident.results import LATE, LOCKED, REPLAYED
from bench.incident.work import message, question

BUSY_MS = 5_000
SEARCH_S = 15.0
REPLAY_S = 60.0
LOCK_POLL_S = 0.01
CANDIDATES = 200
LIMIT = 10
VECTOR_WEIGHT = 0.7
CACHE_KIB = 65_536
SESSION = "the conversation"

CONVERSATION = """
CREATE TABLE sessions (session_id TEXT PRIMARY KEY, updated_at INTEGER NOT NULL) STRICT;
CREATE TABLE transcript_events (
    session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT NOT NULL, created_at INTEGER NOT NULL,
    PRIMARY KEY (session_id, seq)
) STRICT;
CREATE VIRTUAL TABLE transcript_fts USING fts5(text, session_id UNINDEXED, tokenize = 'unicode61');
CREATE TABLE approvals (
    approval_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, status TEXT NOT NULL, text TEXT NOT NULL,
    requested_at INTEGER NOT NULL, decided_at INTEGER
) STRICT;
INSERT INTO sessions VALUES ('the conversation', 0);
"""
INDEX = """
CREATE TABLE {where}.sources (
    path TEXT PRIMARY KEY, hash TEXT NOT NULL, mtime REAL NOT NULL, size INTEGER NOT NULL
) STRICT;
CREATE TABLE {where}.chunks (
    id TEXT PRIMARY KEY, path TEXT NOT NULL, start_line INTEGER NOT NULL, end_line INTEGER NOT NULL,
    hash TEXT NOT NULL, model TEXT NOT NULL, text TEXT NOT NULL, embedding ANY NOT NULL, updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX {where}.chunks_path ON chunks (path);
CREATE TABLE {where}.embedding_cache (
    model TEXT NOT NULL, hash TEXT NOT NULL, embedding ANY NOT NULL, dims INTEGER NOT NULL, updated_at INTEGER NOT NULL,
    PRIMARY KEY (model, hash)
) STRICT;
"""
# Dropping and creating a virtual table is much faster than deleting its rows.
SEARCHED = """
CREATE VIRTUAL TABLE {where}.chunks_fts USING fts5(text, id UNINDEXED, tokenize = 'unicode61');
CREATE VIRTUAL TABLE {where}.chunks_vec USING vec0(id TEXT PRIMARY KEY, embedding FLOAT[{dimensions}]);
"""

BEGIN = "BEGIN IMMEDIATE"
ADD_EVENT = """
INSERT INTO transcript_events
SELECT ?1, coalesce(max(seq), 0) + 1, ?2, ?3 FROM transcript_events WHERE session_id = ?1
"""
ADD_EVENT_TEXT = "INSERT INTO transcript_fts (text, session_id) VALUES (?, ?)"
TOUCH_SESSION = "UPDATE sessions SET updated_at = ? WHERE session_id = ?"
REQUEST_APPROVAL = "INSERT OR REPLACE INTO approvals VALUES (?, ?, 'pending', ?, ?, NULL)"
DECIDE_APPROVAL = "UPDATE approvals SET status = 'approved', decided_at = ? WHERE approval_id = ?"
BY_WORDS = "SELECT id, -bm25(chunks_fts) FROM chunks_fts WHERE chunks_fts MATCH ? ORDER BY rank LIMIT ?"
BY_WORDS_SAID = (
    "SELECT rowid, -bm25(transcript_fts) FROM transcript_fts WHERE transcript_fts MATCH ? ORDER BY rank LIMIT ?"
)
BY_MEANING = "SELECT id, distance FROM chunks_vec WHERE embedding MATCH ? AND k = ?"
READ_CHUNK = "SELECT path, start_line, end_line, text FROM chunks WHERE id = ?"
READ_SAID = "SELECT text FROM transcript_fts WHERE rowid = ?"


class _Embedding(msgspec.Struct):
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


_embeddings = msgspec.json.Decoder(_Embeddings)


def connect(path: str) -> apsw.Connection:
    """Open the file."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(BUSY_MS)
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.enable_load_extension(False)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", f"cache_size = -{CACHE_KIB}"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def create(path: str, dimensions: int) -> None:
    """Make the file, with an empty index."""
    connection = connect(path)
    connection.execute(CONVERSATION + (INDEX + SEARCHED).format(where="main", dimensions=dimensions))
    connection.close()


def lock_path(database: str) -> str:
    """Return the file whose lock a publication holds against searches."""
    return f"{database}.generation-lock"


class MonolithMemory:
    """A client of the file; implements `memory.Memory`."""

    def __init__(self, database: str, endpoint_port: int) -> None:
        self._connection = connect(database)
        self._lock = os.open(lock_path(database), os.O_RDWR | os.O_CREAT, 0o600)
        self._endpoint = http.client.HTTPConnection("127.0.0.1", endpoint_port, timeout=SEARCH_S)
        self._replay_until = 0.0

    def append(self, number: int) -> None:
        """Append a turn to the transcript and its full text."""
        text, now = message(number), time.time_ns() // 1_000_000
        event = msgspec.json.encode({"role": "user" if number % 2 else "assistant", "content": text}).decode()
        with self._transaction() as connection:
            connection.execute(ADD_EVENT, (SESSION, event, now))
            connection.execute(ADD_EVENT_TEXT, (text, SESSION))
            connection.execute(TOUCH_SESSION, (now, SESSION))

    def approve(self, number: int) -> None:
        """Request an approval, or decide it: one row either way."""
        now, identifier = time.time_ns() // 1_000_000, f"approval-{number // 2 % 100}"
        with self._transaction() as connection:
            if number % 2:
                connection.execute(DECIDE_APPROVAL, (now, identifier))
            else:
                text = f"approval {number}: the tool may run"
                connection.execute(REQUEST_APPROVAL, (identifier, SESSION, text, now))

    def search(self, number: int) -> tuple[str, ...]:
        """Search the notes by words and meaning, what was said by its words."""
        began = time.monotonic()
        if began < self._replay_until:
            raise Refused(REPLAYED)
        try:
            with self._no_publication(began + SEARCH_S):
                self.find(question(number))
            if time.monotonic() > began + SEARCH_S:
                raise Refused(LATE)
        except apsw.BusyError as error:
            self._replay_until = time.monotonic() + REPLAY_S
            raise Refused(LOCKED) from error
        except Refused:
            self._replay_until = time.monotonic() + REPLAY_S
            raise
        return ()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._endpoint.close()
        os.close(self._lock)

    @contextmanager
    def _transaction(self) -> Iterator[apsw.Connection]:
        try:
            self._connection.execute(BEGIN)
            yield self._connection
            self._connection.execute("COMMIT")
        except apsw.BusyError as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise Refused(LOCKED) from error

    @contextmanager
    def _no_publication(self, deadline: float) -> Iterator[None]:
        """Hold off a publication while a search reads; wait for one that is under way until the deadline."""
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Refused(LATE) from None
                time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def find(self, query: str) -> list[object]:
        """Return the best hits, read from their tables."""
        words = " OR ".join(f'"{word}"' for word in query.split())
        vector = np.asarray(self._embed(query), np.float32).tobytes()
        listed = [self._scored(BY_WORDS, words), self._scored(BY_WORDS_SAID, words)]
        scores = {key: (1 - VECTOR_WEIGHT) * found / (1 + found) for part in listed for key, found in part}
        for key, distance in self._scored(BY_MEANING, vector):
            cosine = 1 - distance * distance / 2
            scores[key] = scores.get(key, 0.0) + VECTOR_WEIGHT * cosine
        best = sorted(scores, key=scores.__getitem__, reverse=True)[:LIMIT]
        execute = self._connection.execute
        return [execute(READ_CHUNK if isinstance(key, str) else READ_SAID, (key,)).fetchone() for key in best]

    def _scored(self, sql: str, wanted: str | bytes) -> list[tuple[str | int, float]]:
        rows = self._connection.execute(sql, (wanted, CANDIDATES)).fetchall()
        return cast(list[tuple[str | int, float]], rows)

    def _embed(self, query: str) -> list[float]:
        self._endpoint.request("POST", "/v1/embeddings", msgspec.json.encode({"input": [query]}))
        return _embeddings.decode(self._endpoint.getresponse().read()).data[0].embedding
