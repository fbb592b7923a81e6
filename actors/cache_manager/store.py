"""Vectors on disk: the kind of file, and one function a statement."""

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from actors.settings import CacheManagerSettings
from actors.sql import meta
from actors.sql.database import FileKind, read_schema

FILE_NAME = "cache.db"
PAGE_BYTES = 4096
KEY_BYTES = 32
_TICK = "tick"
WAL_BYTES_MAX = 8 * 1024 * 1024
# What a vector costs beyond its own bytes: the head of its row, and its entry with its places in two indexes.
_ROW_HEADER_BYTES = 24
_ENTRY_BYTES = 192


def file_kind(limits: CacheManagerSettings) -> FileKind:
    """Return what kind of file the cache is. No fsync: after a power cut the checksums tell what is still good."""
    return FileKind(
        name="cache",
        application_id=0x62684341,
        user_version=1,
        schema=read_schema(__package__),
        synchronous="OFF",
        busy_timeout_ms=limits.busy_timeout_ms,
        journal_bytes_max=WAL_BYTES_MAX,
        incremental_vacuum=True,
        secure_delete=False,
    )


class Identity(NamedTuple):
    """An embedding identity that has vectors."""

    id: int
    dimensions: int


class Stored(NamedTuple):
    """A vector as it was found."""

    id: int
    vector: bytes
    intact: bool


def find_identity(connection: sqlite3.Connection, name: str) -> Identity | None:
    """Return an identity, None when nothing was put under its name."""
    row = connection.execute("SELECT id, dimensions FROM identities WHERE name = :name", {"name": name}).fetchone()
    return None if row is None else Identity(*row)


def adopt_identity(connection: sqlite3.Connection, name: str, dimensions: int) -> Identity:
    """Return an identity, made new where need be; vectors that it has with other dimensions are misses from now on."""
    row = connection.execute(
        """
        INSERT INTO identities (name, dimensions) VALUES (:name, :dimensions)
        ON CONFLICT (name) DO UPDATE SET dimensions = excluded.dimensions
        RETURNING id, dimensions
        """,
        {"name": name, "dimensions": dimensions},
    ).fetchone()
    return Identity(*row)


def find_vector(connection: sqlite3.Connection, identity: int, key: bytes) -> Stored | None:
    """Return the vector of a key."""
    row = connection.execute(
        """
        SELECT e.id, v.checksum, v.vector
        FROM entries AS e
        JOIN vectors AS v ON v.id = e.id
        WHERE e.identity = :identity AND e.key = :key
        """,
        {"identity": identity, "key": key},
    ).fetchone()
    if row is None:
        return None
    entry, checksum, vector = row
    return Stored(entry, vector, intact=checksum == _checksum(key, vector))


def put_vector(connection: sqlite3.Connection, identity: int, key: bytes, vector: bytes, tick: int) -> None:
    """Keep a vector, in place of the one that the key has."""
    (entry,) = connection.execute(
        """
        INSERT INTO entries (identity, key, used) VALUES (:identity, :key, :tick)
        ON CONFLICT (identity, key) DO UPDATE SET used = excluded.used
        RETURNING id
        """,
        {"identity": identity, "key": key, "tick": tick},
    ).fetchone()
    connection.execute(
        """
        INSERT INTO vectors (id, checksum, vector) VALUES (:id, :checksum, :vector)
        ON CONFLICT (id) DO UPDATE SET checksum = excluded.checksum, vector = excluded.vector
        """,
        {"id": entry, "checksum": _checksum(key, vector), "vector": vector},
    )


def touch(connection: sqlite3.Connection, entries: Iterable[int], tick: int) -> None:
    """Note that entries were used."""
    connection.executemany(
        "UPDATE entries SET used = :tick WHERE id = :id", ({"tick": tick, "id": entry} for entry in entries)
    )


def evict(connection: sqlite3.Connection, rows_max: int) -> int:
    """Remove the least recently used vectors, at most `rows_max`; return how many there were."""
    rows = connection.execute(
        "SELECT id FROM entries ORDER BY used, id LIMIT :rows_max", {"rows_max": rows_max}
    ).fetchall()
    remove(connection, [entry for (entry,) in rows])
    return len(rows)


def remove(connection: sqlite3.Connection, entries: Sequence[int]) -> None:
    """Remove vectors by their ids."""
    parameters = [{"id": entry} for entry in entries]
    connection.executemany("DELETE FROM vectors WHERE id = :id", parameters)
    connection.executemany("DELETE FROM entries WHERE id = :id", parameters)


def next_tick(connection: sqlite3.Connection) -> int:
    """Move the access clock on and return it."""
    return meta.count_up(connection, _TICK)


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return how many bytes of the file are in use."""
    return (_pragma(connection, "page_count") - _pragma(connection, "freelist_count")) * PAGE_BYTES


def free_bytes(connection: sqlite3.Connection) -> int:
    """Return how many bytes of the file are free and could be given back."""
    return _pragma(connection, "freelist_count") * PAGE_BYTES


def give_back(connection: sqlite3.Connection, pages_max: int) -> None:
    """Cut free pages off the end of the file; the file is shorter after the next checkpoint."""
    connection.execute(f"PRAGMA incremental_vacuum({pages_max})").fetchall()


def count_entries(connection: sqlite3.Connection) -> int:
    """Return how many vectors there are."""
    (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
    return int(count)


def bytes_needed(dimensions: int) -> int:
    """Return about how many bytes of the file a vector takes: a part of a page when it is small, else whole pages."""
    row = 4 * dimensions + _ROW_HEADER_BYTES
    if row <= PAGE_BYTES // 2:
        return PAGE_BYTES // (PAGE_BYTES // row) + _ENTRY_BYTES
    return -(-row // PAGE_BYTES) * PAGE_BYTES + _ENTRY_BYTES


def _checksum(key: bytes, vector: bytes) -> int:
    return zlib.crc32(vector, zlib.crc32(key))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
