"""Reading a truth that failed its verification: what of it can still be served, and nothing else.

The file is opened read-only and left as it is. Each table is checked by itself; what SQLite finds damaged in it or in
its indexes makes the whole table refused, by an authorizer, so no statement can touch it by accident. The rest is
served under SQLite's own checks of every page and cell that it reads. A file of another data directory or version is
not served at all: nobody can say what its rows mean here.
"""

import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

from actors.errors import Quarantined
from actors.sql import meta
from actors.sql.database import (
    PROGRESS_STEPS,
    FileKind,
    NotOurs,
    file_bytes,
    is_damage,
    open_reader,
    require_ours,
    require_version,
)

# Tables that are not checked by then are served unchecked: the caller of a start waits.
_CHECK_S = 4.0


class Damaged(NamedTuple):
    """A read-only connection, and the tables that it refuses to read."""

    connection: sqlite3.Connection
    refused: frozenset[str]


def open_damaged(path: Path, kind: FileKind, identity: str) -> Damaged:
    """Open what is left of a file. Raises Quarantined when that is nothing, NotOurs when it is not for us."""
    if file_bytes(path) == 0:
        # SQLite would delete a WAL beside it, also through a read-only connection.
        raise Quarantined(f"{kind.name} database {str(path)!r} is empty or gone")
    try:
        connection = open_reader(path, kind, lenient=True)
    except sqlite3.Error as error:
        raise Quarantined(f"{kind.name} database {str(path)!r} can't be opened: {error}") from error
    try:
        _require_readable(connection, path, kind, identity)
        refused = _damaged_tables(connection)
    except sqlite3.Error as error:
        connection.close()
        raise Quarantined(f"{kind.name} database {str(path)!r} can't be read: {error}") from error
    except BaseException:
        connection.close()
        raise
    refuse_tables(connection, refused)
    return Damaged(connection, refused)


def refuse_tables(connection: sqlite3.Connection, names: frozenset[str]) -> None:
    """Let no statement of this connection read these tables (SQLITE_AUTH)."""

    def authorize(action: int, first: str | None, second: str | None, schema: str | None, trigger: str | None) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_READ and first in names else sqlite3.SQLITE_OK

    connection.set_authorizer(authorize)


def _require_readable(connection: sqlite3.Connection, path: Path, kind: FileKind, identity: str) -> None:
    """Raise NotOurs unless the file is known to be of this program, this version and this data directory."""
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    require_version(connection, path, kind)
    try:
        stored = meta.require_identity(connection, identity, repr(str(path))) if identity else None
    except sqlite3.Error as error:
        if not is_damage(error):
            raise NotOurs(f"{str(path)!r} has no table meta that says whose it is: {error}") from error
        stored = None
    if stored is None:
        # Nothing in it says whose it is, so at least its header must.
        try:
            require_ours(connection, path, kind)
        except Quarantined as error:
            raise NotOurs(error.message, hint=error.hint) from error


def _damaged_tables(connection: sqlite3.Connection) -> frozenset[str]:
    """Return the tables in which SQLite finds damage."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    until = time.monotonic() + _CHECK_S
    connection.set_progress_handler(lambda: time.monotonic() > until, PROGRESS_STEPS)
    try:
        return frozenset(name for name in names if not _is_sound(connection, name))
    finally:
        connection.set_progress_handler(None, 0)


def _is_sound(connection: sqlite3.Connection, table: str) -> bool:
    quoted = table.replace('"', '""')
    try:
        (finding,) = connection.execute(f'PRAGMA quick_check("{quoted}")').fetchone()
    except sqlite3.OperationalError as error:
        return not is_damage(error)  # interrupted: not known to be damaged
    except sqlite3.DatabaseError:
        return False
    return bool(finding == "ok")
