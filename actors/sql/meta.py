"""The table `meta` that every database of the truth has: a few named facts and counters.

    CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID

Writing belongs into the transaction of the change that it describes.
"""

import sqlite3

from actors.sql.database import NotOurs


def read_text(connection: sqlite3.Connection, name: str) -> str | None:
    """Return a fact, None when it was never written."""
    row = connection.execute("SELECT value FROM meta WHERE name = :name", {"name": name}).fetchone()
    return None if row is None else str(row[0])


def read_counter(connection: sqlite3.Connection, name: str) -> int:
    """Return a counter, 0 when it was never written."""
    row = connection.execute("SELECT value FROM meta WHERE name = :name", {"name": name}).fetchone()
    return 0 if row is None else int(row[0])


def read_counters(connection: sqlite3.Connection) -> dict[str, int]:
    """Return every counter by name."""
    return dict(connection.execute("SELECT name, value FROM meta WHERE typeof(value) = 'integer'"))


def write(connection: sqlite3.Connection, name: str, value: str | int) -> None:
    """Set a fact or counter."""
    connection.execute(
        "INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        {"name": name, "value": value},
    )


def count_up(connection: sqlite3.Connection, name: str) -> int:
    """Add one to a counter and return it."""
    value = read_counter(connection, name) + 1
    write(connection, name, value)
    return value


def adopt_identity(connection: sqlite3.Connection, identity: str, what: str) -> None:
    """Remember the identity of the data directory; raise NotOurs when the file belongs to another one."""
    if require_identity(connection, identity, what) is None:
        write(connection, "identity", identity)


def require_identity(connection: sqlite3.Connection, identity: str, what: str) -> str | None:
    """Return the identity that is stored, None when there is none yet; raise NotOurs when it is another one."""
    stored = read_text(connection, "identity")
    if stored is not None and stored != identity:
        raise NotOurs(
            f"{what} belongs to data directory {stored!r}, this is {identity!r}",
            hint="the file was moved here from another data directory; put the right one back",
        )
    return stored
