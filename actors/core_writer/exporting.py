"""Units and sessions taken out as they are and put in as they were. Statements and rules; times in µs.

A version is put in behind the one before it: versions of a unit have no gaps, and its last one is the latest. One that
is there already and says the same is `present`; what says something else stays, and the import is a `conflict`.
"""

import sqlite3
from collections.abc import Callable

import msgspec

from actors.core_writer import unit_refs, units
from actors.core_writer.store import CORE_SEQ
from actors.core_writer.subject import Subject, Writing
from actors.core_writer.units import UnitRow
from actors.errors import InvalidParams
from actors.messages.core_writer import PutUnit
from actors.messages.exporting import (
    Exported,
    ExportUnits,
    Imported,
    ImportSessions,
    ImportUnits,
    Outcome,
    SessionAsItWas,
    UnitVersion,
)
from actors.settings import CoreWriterSettings
from actors.sql import meta
from actors.sql.limits import check_ids, check_json, check_text, check_ts
from actors.sql.rows import page, rows_limit

# A transaction of so many is done in a few ms.
ROWS_MAX = 100
_ROOM = "core_writer"
_WHAT = "import"
_COLUMNS = (
    *("core_seq", "unit_id", "version", "latest", "tenant", "session_id", "type", "scope", "status", "confidence"),
    *("parent_unit_id", "created_at", "updated_at", "tags", "event_refs", "facts", "text"),
)
# What a later version changes of an earlier one is no difference between two copies of it.
_SAID = ("tenant", "session_id", "type", "scope", "confidence", "parent_unit_id", "tags", "event_refs", "facts", "text")


def export_units(connection: sqlite3.Connection, message: ExportUnits, row_of: Callable[[UnitRow], bytes]) -> Exported:
    """Return a page of all versions of a tenant."""
    limit = rows_limit(message.limit)
    numbers = connection.execute(
        f"""
        SELECT core_seq FROM units
        WHERE core_seq > :after AND tenant = :tenant AND {units.NOT_HIDDEN}
        ORDER BY core_seq
        LIMIT :limit
        """,
        {"after": message.after, "tenant": message.tenant, "limit": limit + 1},
    ).fetchall()
    versions = (units.version_at(connection, core_seq) for (core_seq,) in numbers)
    given = page((row_of(unit) for unit in versions if unit is not None), limit)
    last = numbers[given.count - 1][0] if given.count else message.after
    return Exported(rows=given.rows, count=given.count, last=last, more=given.more)


def import_units(writing: Writing, message: ImportUnits) -> Imported:
    """Put versions in, in their order."""
    return Imported(outcomes=tuple(_put_version(writing, message.tenant, each) for each in message.units))


def import_sessions(writing: Writing, message: ImportSessions) -> Imported:
    """Put sessions in; one that is there stays as it is."""
    return Imported(outcomes=tuple(_put_session(writing, message.tenant, each) for each in message.sessions))


def check(message: ImportUnits | ImportSessions, limits: CoreWriterSettings) -> None:
    """Check every row against the limits; raises InvalidParams and changes nothing."""
    rows = message.units if isinstance(message, ImportUnits) else message.sessions
    if len(rows) > ROWS_MAX:
        raise InvalidParams(f"import refused: {len(rows)} rows at once, the limit is {ROWS_MAX}")
    for row in rows:
        if isinstance(row, UnitVersion):
            _prepared(message.tenant, row, limits)
            _check_times({"created_at": row.created_at, "updated_at": row.updated_at})
            if row.version < 1:
                raise InvalidParams(f"import refused: version is {row.version}, it must be at least 1")
        else:
            _check_session(row, limits)


def _check_session(row: SessionAsItWas, limits: CoreWriterSettings) -> None:
    check_ids(_WHAT, {"session_id": row.session_id}, limits.id_chars_max, f"{_ROOM}.id_chars_max")
    for field, text in (("title", row.title), ("agent", row.agent)):
        check_text(_WHAT, field, text or "", limits.meta_bytes_max, f"{_ROOM}.meta_bytes_max")
    check_json(_WHAT, "meta", row.meta, limits.meta_bytes_max, f"{_ROOM}.meta_bytes_max")
    times = {"created_at": row.created_at, "updated_at": row.updated_at, "last_active_at": row.last_active_at}
    _check_times({**times, "closed_at": row.closed_at, "archived_at": row.archived_at})


def _check_times(times: dict[str, int | None]) -> None:
    for field, ts in times.items():
        check_ts(_WHAT, field, ts)


def _prepared(tenant: str, row: UnitVersion, limits: CoreWriterSettings) -> units.Prepared:
    """Return the row within the limits of a unit that a client puts."""
    message = PutUnit(
        unit_id=row.unit_id,
        type=row.type,
        scope=row.scope,
        text=row.text,
        facts=row.facts,
        event_refs=row.event_refs,
        confidence=row.confidence,
        parent_unit_id=row.parent_unit_id,
        tags=row.tags,
        session_id=row.session_id,
        tenant=tenant,
    )
    return units.prepare(message, limits)


def _put_version(writing: Writing, tenant: str, row: UnitVersion) -> Outcome:
    connection, ready = writing.connection, _prepared(tenant, row, writing.limits)
    wanted = UnitRow(
        core_seq=0,
        unit_id=row.unit_id,
        version=row.version,
        latest=1,
        tenant=tenant,
        session_id=row.session_id,
        type=row.type,
        scope=row.scope,
        status=row.status,
        confidence=row.confidence,
        parent_unit_id=row.parent_unit_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        tags=ready.tags,
        event_refs=ready.event_refs,
        facts=ready.facts,
        text=row.text,
    )
    here = units.version_of(connection, row.unit_id, row.version)
    if here is not None:
        return "present" if _says_the_same(here, wanted) else "conflict"
    last = connection.execute(
        "SELECT core_seq, version, tenant FROM units WHERE unit_id = :unit_id AND latest = 1", {"unit_id": row.unit_id}
    ).fetchone()
    if last is not None and (last[2] != tenant or row.version != last[1] + 1):
        return "conflict"
    if last is None and row.version != 1:
        return "conflict"
    if last is not None:
        _follow(connection, last[0])
    written = wanted._replace(core_seq=meta.count_up(connection, CORE_SEQ))
    _insert(connection, written)
    unit_refs.replace(connection, written)
    return "imported"


def _follow(connection: sqlite3.Connection, core_seq: int) -> None:
    connection.execute(
        """
        UPDATE units SET latest = 0, status = CASE status WHEN 'active' THEN 'deprecated' ELSE status END
        WHERE core_seq = :core_seq
        """,
        {"core_seq": core_seq},
    )


def _insert(connection: sqlite3.Connection, row: UnitRow) -> None:
    names = ", ".join(_COLUMNS)
    places = ", ".join(f":{name}" for name in _COLUMNS)
    values = {name: getattr(row, name) for name in _COLUMNS}
    connection.execute(f"INSERT INTO units ({names}) VALUES ({places})", values)


def _says_the_same(here: UnitRow, wanted: UnitRow) -> bool:
    return all(getattr(here, name) == getattr(wanted, name) for name in _SAID)


def _put_session(writing: Writing, tenant: str, row: SessionAsItWas) -> Outcome:
    changed = writing.connection.execute(
        """
        INSERT INTO sessions (tenant, session_id, status, title, agent, meta, created_at, updated_at, last_active_at,
            closed_at, closed_seq, archived_at)
        VALUES (:tenant, :session_id, :status, :title, :agent, :meta, :created_at, :updated_at, :last_active_at,
            :closed_at, :closed_seq, :archived_at)
        ON CONFLICT (tenant, session_id) DO NOTHING
        """,
        {
            "tenant": tenant,
            "session_id": row.session_id,
            "status": "open" if row.closed_at is None else "closed",
            "title": row.title,
            "agent": row.agent,
            "meta": None if row.meta is None else msgspec.json.encode(row.meta).decode(),
            "created_at": row.created_at,
            "updated_at": row.updated_at,
            "last_active_at": row.last_active_at,
            "closed_at": row.closed_at,
            "closed_seq": None if row.closed_at is None else 0,
            "archived_at": None if row.closed_at is None else row.archived_at,
        },
    )
    return "imported" if changed.rowcount == 1 else "present"


SUBJECT = Subject(
    writes={ImportUnits: import_units, ImportSessions: import_sessions},
    check=check,
)
