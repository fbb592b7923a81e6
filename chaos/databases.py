"""The files of a daemon that has ended, checked by SQLite itself (I12) and for gaps in the transcript (I4).

Opens databases in this process, which is only right once no process of the daemon is left.
"""

import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

BUSY_S = 5.0


def check_databases(data: Path, *, damaged: Collection[str] = ()) -> list[str]:
    """Check every database below a data directory but those named in `damaged` (relative path, or a folder)."""
    wrong = []
    for path in sorted(data.rglob("*.db")):
        name = str(path.relative_to(data))
        if not any(name == each or name.startswith(each.rstrip("/") + "/") for each in damaged):
            wrong += [f"I12: {name}: {text}" for text in _check(path)]
            wrong += [f"I4: {name}: {text}" for text in _gaps(path)]
    return wrong


def _check(path: Path) -> list[str]:
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
            wrong = [row[0] for row in connection.execute("PRAGMA quick_check") if row[0] != "ok"]
            for table in _full_text_tables(connection):
                wrong += _check_full_text(connection, table)
            return wrong
    except sqlite3.Error as error:
        return [f"{type(error).__name__}: {error}"]


def _full_text_tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%USING fts5(%'")
    return [row[0] for row in rows]


def _check_full_text(connection: sqlite3.Connection, table: str) -> list[str]:
    """Let FTS5 compare its index with itself; it is a write by syntax only, and is rolled back."""
    try:
        connection.execute(f"INSERT INTO {table}({table}, rank) VALUES('integrity-check', 1)")
    except sqlite3.DatabaseError as error:
        return [f"full-text index {table!r}: {error}"]
    finally:
        connection.rollback()
    return []


def _gaps(path: Path) -> list[str]:
    """Check that the events of one file have seqs without gaps."""
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
            known = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"events", "sessions"} <= known:
                return []
            count, first, last = connection.execute("SELECT count(*), min(seq), max(seq) FROM events").fetchone()
    except sqlite3.Error:
        return []  # `_check` has said so
    if count and count != last - first + 1:
        return [f"{count} events have the seqs {first} to {last}: there are gaps"]
    return []
