"""Markdown roots: where notes are looked for. Statements and rules."""

import itertools
import sqlite3
from pathlib import PurePath

from actors.core_writer.store import SOURCES_SEQ
from actors.errors import InvalidParams, NotFound
from actors.messages.core_writer import SourceRoot
from actors.sql import meta
from actors.sql.rows import encode_row, rfc3339

_COLUMNS = "source_id, path, name, added_at, tenant"


def clean_path(path: str) -> str:
    """Return an absolute path without doubled or trailing slashes; raises InvalidParams for a relative one."""
    pure = PurePath(path)
    if not pure.is_absolute() or ".." in pure.parts:
        raise InvalidParams(f"source.add refused: path is {path!r}, it must be absolute and resolved")
    return str(pure)


def add_source(
    connection: sqlite3.Connection, *, tenant: str, source_id: str, path: str, name: str | None, now: int
) -> SourceRoot:
    """Register a root, or return the first registration of its path."""
    existing = _find_path(connection, tenant, path)
    if existing is not None:
        return existing
    free = _free_name(connection, tenant, name or PurePath(path).name or "root", given=name is not None)
    root = SourceRoot(source_id=source_id, path=path, name=free, added_at=now, tenant=tenant)
    connection.execute(
        f"INSERT INTO sources ({_COLUMNS}) VALUES (:source_id, :path, :name, :added_at, :tenant)",
        {
            "source_id": root.source_id,
            "path": root.path,
            "name": root.name,
            "added_at": root.added_at,
            "tenant": root.tenant,
        },
    )
    meta.count_up(connection, SOURCES_SEQ)
    return root


def _free_name(connection: sqlite3.Connection, tenant: str, wanted: str, *, given: bool) -> str:
    """Return a name that no root of the tenant has: paths in hits begin with it, so it must lead to one folder only."""
    taken = {root.name for root in list_sources(connection, tenant)}
    if wanted not in taken:
        return wanted
    if given:
        raise InvalidParams(f"source.add refused: another source is called {wanted!r}; give it another name")
    return next(name for number in itertools.count(2) if (name := f"{wanted}-{number}") not in taken)


def remove_source(connection: sqlite3.Connection, *, tenant: str, source_id: str) -> SourceRoot:
    """Forget a root by its id or its path and return what it was; raises NotFound."""
    root = _find_id(connection, tenant, source_id) or _find_path(connection, tenant, str(PurePath(source_id)))
    if root is None:
        raise NotFound(f"there is no source {source_id!r}")
    connection.execute(
        "DELETE FROM sources WHERE tenant = :tenant AND source_id = :source_id",
        {"tenant": tenant, "source_id": root.source_id},
    )
    meta.count_up(connection, SOURCES_SEQ)
    return root


def list_sources(connection: sqlite3.Connection, tenant: str | None) -> list[SourceRoot]:
    """Return the roots of a tenant, of all when it is None, in the order in which they were added."""
    rows = connection.execute(
        f"""
        SELECT {_COLUMNS}
        FROM sources
        WHERE :tenant IS NULL OR tenant = :tenant
        ORDER BY rowid
        """,
        {"tenant": tenant},
    )
    return [_root(row) for row in rows]


def client_row(root: SourceRoot) -> bytes:
    """Return a root as JSON."""
    return encode_row(
        {"source_id": root.source_id, "path": root.path, "name": root.name, "added_at": rfc3339(root.added_at)}
    )


def _find_id(connection: sqlite3.Connection, tenant: str, source_id: str) -> SourceRoot | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM sources WHERE tenant = :tenant AND source_id = :source_id",
        {"tenant": tenant, "source_id": source_id},
    ).fetchone()
    return None if row is None else _root(row)


def _find_path(connection: sqlite3.Connection, tenant: str, path: str) -> SourceRoot | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM sources WHERE tenant = :tenant AND path = :path", {"tenant": tenant, "path": path}
    ).fetchone()
    return None if row is None else _root(row)


def _root(row: tuple[str, str, str, int, str]) -> SourceRoot:
    source_id, path, name, added_at, tenant = row
    return SourceRoot(source_id=source_id, path=path, name=name, added_at=added_at, tenant=tenant)
