"""Which tables and indexes a file of the transcript has: what its first page says, and what it must say.

SQLite believes whatever its schema says; a changed letter in the name of a column is a table that lacks a column. So
the schema is compared with the one that this program would write, without regard to comments and spaces. Where the
tables begin is no part of that: a file that was written by VACUUM has them elsewhere.
"""

import re
import sqlite3
from functools import cache
from typing import NamedTuple


class Layout(NamedTuple):
    """The definitions by name, and the root pages by name."""

    definitions: dict[str, str]
    roots: dict[str, int]


def read_layout(connection: sqlite3.Connection) -> Layout:
    """Return what the first page says."""
    rows = connection.execute("SELECT name, rootpage, coalesce(sql, '') FROM sqlite_schema").fetchall()
    return Layout(
        definitions={str(name): _normalised(str(sql)) for name, _, sql in rows},
        roots={str(name): int(root) for name, root, _ in rows},
    )


@cache
def expected_layout(schema: str) -> Layout:
    """Return the layout of an empty file with this schema."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(schema)
        return read_layout(connection)
    finally:
        connection.close()


def _normalised(sql: str) -> str:
    return re.sub(r"\s+", "", re.sub(r"--[^\n]*", "", sql)).casefold()
