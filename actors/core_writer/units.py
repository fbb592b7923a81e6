"""Memory units: versions, compare-and-set, the change feed. Statements and rules; times in µs."""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from actors.core_writer.store import CORE_SEQ
from actors.errors import Conflict, InvalidParams, NotFound
from actors.messages.core_writer import PutUnit
from actors.redaction import Redactor, recall_json, recall_text
from actors.settings import CoreWriterSettings
from actors.sql import meta
from actors.sql.limits import check_id, check_ids, check_json, check_tags, check_text
from actors.sql.rows import encode_row, raw_json, rfc3339

_ROOM = "core_writer"
_WHAT = "unit.put"
FORGOTTEN = "forgotten"
# Versions of units that nobody may be answered with. Every statement for a client has it in its condition.
NOT_HIDDEN = """
    NOT EXISTS (
        SELECT 1 FROM units AS last
        WHERE last.unit_id = units.unit_id AND last.latest = 1 AND last.status = 'forgotten'
    )
"""
_COLUMNS = (
    "core_seq, unit_id, version, latest, tenant, session_id, type, scope, status, confidence, parent_unit_id,"
    " created_at, updated_at, tags, event_refs, facts, text"
)


class UnitRow(NamedTuple):
    """A version of a unit: a row of `units`, in the order of its columns."""

    core_seq: int
    unit_id: str
    version: int
    latest: int
    tenant: str
    session_id: str | None
    type: str
    scope: str
    status: str
    confidence: float | None
    parent_unit_id: str | None
    created_at: int
    updated_at: int
    tags: str
    event_refs: str
    facts: str | None
    text: str


class Prepared(NamedTuple):
    """What a client wants to be written, within the limits, with its JSON columns."""

    message: PutUnit
    tags: str
    event_refs: str
    facts: str | None


def prepare(message: PutUnit, limits: CoreWriterSettings) -> Prepared:
    """Check a unit against the limits; raises InvalidParams."""
    ids = {
        "tenant": message.tenant,
        "unit_id": message.unit_id,
        "parent_unit_id": message.parent_unit_id,
        "session_id": message.session_id,
        "request_id": message.request_id,
    }
    check_ids(_WHAT, ids, limits.id_chars_max, f"{_ROOM}.id_chars_max")
    check_text(_WHAT, "text", message.text, limits.text_bytes_max, f"{_ROOM}.text_bytes_max")
    if message.confidence is not None and not 0 <= message.confidence <= 1:
        raise InvalidParams(f"unit.put refused: confidence is {message.confidence!r}, it must be between 0 and 1")
    if message.expected_version is not None and message.unit_id is None and message.expected_version != 0:
        raise InvalidParams(f"unit.put refused: expected_version {message.expected_version} needs a unit_id")
    return Prepared(
        message=message,
        tags=check_tags(_WHAT, message.tags, count_max=limits.tags_max, chars_max=limits.tag_chars_max, room=_ROOM),
        event_refs=_check_event_refs(message.event_refs, limits),
        facts=check_json(_WHAT, "facts", message.facts, limits.facts_bytes_max, f"{_ROOM}.facts_bytes_max"),
    )


def put_unit(connection: sqlite3.Connection, unit: Prepared, *, new_id: str, now: int) -> UnitRow:
    """Write version 1 of a new unit, or the next version of the one that exists, which deprecates the last.

    Raises Conflict when the stored version is not the expected one, or the id is another tenant's.
    """
    message = unit.message
    unit_id = message.unit_id or new_id
    last = _latest(connection, unit_id)
    if last is not None and last.tenant != message.tenant:
        raise Conflict(f"unit.put refused: unit_id {unit_id!r} is not available", hint="choose another one")
    if last is not None and last.status == FORGOTTEN:
        raise Conflict(f"unit.put refused: unit {unit_id!r} was forgotten", hint="choose another unit_id")
    version = 0 if last is None else last.version
    if message.expected_version is not None and message.expected_version != version:
        raise Conflict(
            f"unit.put refused: unit {unit_id!r} is at version {version}, expected {message.expected_version}",
            hint="read the unit again and repeat the change on its latest version",
        )
    if last is not None:
        _supersede(connection, last.core_seq)
    row = UnitRow(
        core_seq=meta.count_up(connection, CORE_SEQ),
        unit_id=unit_id,
        version=version + 1,
        latest=1,
        tenant=message.tenant,
        session_id=message.session_id,
        type=message.type,
        scope=message.scope,
        status=message.status,
        confidence=message.confidence,
        parent_unit_id=message.parent_unit_id,
        created_at=now if last is None else last.created_at,
        updated_at=now if last is None else max(now, last.updated_at + 1),
        tags=unit.tags,
        event_refs=unit.event_refs,
        facts=unit.facts,
        text=message.text,
    )
    _insert(connection, row)
    return row


def bury_unit(connection: sqlite3.Connection, core_seq: int, *, now: int) -> None:
    """Put a version without content in the place of the latest one, which has this core_seq."""
    last = version_at(connection, core_seq)
    assert last is not None and last.latest, "only what is the latest version can be replaced"
    _supersede(connection, core_seq)
    buried = last._replace(
        core_seq=meta.count_up(connection, CORE_SEQ),
        version=last.version + 1,
        status=FORGOTTEN,
        confidence=None,
        parent_unit_id=None,
        session_id=None,
        updated_at=max(now, last.updated_at + 1),
        tags="[]",
        event_refs="[]",
        facts=None,
        text="",
    )
    _insert(connection, buried)


def erase_unit(connection: sqlite3.Connection, unit_id: str) -> None:
    """Remove the content of all versions of a forgotten unit; that they existed stays known."""
    connection.execute(
        """
        UPDATE units
        SET text = '', facts = NULL, tags = '[]', event_refs = '[]', confidence = NULL, parent_unit_id = NULL,
            session_id = NULL
        WHERE unit_id = :unit_id
        """,
        {"unit_id": unit_id},
    )


def get_unit(connection: sqlite3.Connection, tenant: str, unit_id: str, version: int | None) -> UnitRow:
    """Return a version of a unit, or its latest; raises NotFound."""
    row = connection.execute(
        f"""
        SELECT {_COLUMNS}
        FROM units
        WHERE unit_id = :unit_id AND tenant = :tenant AND (version = :version OR :version IS NULL AND latest = 1)
            AND {NOT_HIDDEN}
        """,
        {"unit_id": unit_id, "tenant": tenant, "version": version},
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no unit {unit_id!r}" + (f" with version {version}" if version is not None else ""))
    return UnitRow(*row)


def unit_history(
    connection: sqlite3.Connection, *, tenant: str, unit_id: str, before_version: int | None, limit: int
) -> Iterator[UnitRow]:
    """Yield the versions of a unit, the newest first."""
    rows = connection.execute(
        f"""
        SELECT {_COLUMNS}
        FROM units
        WHERE unit_id = :unit_id AND tenant = :tenant AND version < :before_version AND {NOT_HIDDEN}
        ORDER BY version DESC
        LIMIT :limit
        """,
        {
            "unit_id": unit_id,
            "tenant": tenant,
            "before_version": 2**63 - 1 if before_version is None else before_version,
            "limit": limit,
        },
    )
    return (UnitRow(*row) for row in rows)


def list_units(
    connection: sqlite3.Connection,
    *,
    tenant: str,
    before_core_seq: int | None,
    type: str | None,
    scope: str | None,
    status: str | None,
    session_id: str | None,
    since: int | None,
    until: int | None,
    limit: int,
) -> Iterator[UnitRow]:
    """Yield the latest versions of units, the last changed first; a member that is None does not narrow.

    `since` (inclusive) and `until` (exclusive) are about the last change, in µs.
    """
    rows = connection.execute(
        f"""
        SELECT {_COLUMNS}
        FROM units
        WHERE latest = 1 AND tenant = :tenant AND core_seq < :before_core_seq AND status <> 'forgotten'
            AND (:type IS NULL OR type = :type)
            AND (:scope IS NULL OR scope = :scope)
            AND (:status IS NULL OR status = :status)
            AND (:session_id IS NULL OR session_id = :session_id)
            AND (:since IS NULL OR updated_at >= :since)
            AND (:until IS NULL OR updated_at < :until)
        ORDER BY core_seq DESC
        LIMIT :limit
        """,
        {
            "tenant": tenant,
            "before_core_seq": 2**63 - 1 if before_core_seq is None else before_core_seq,
            "type": type,
            "scope": scope,
            "status": status,
            "session_id": session_id,
            "since": since,
            "until": until,
            "limit": limit,
        },
    )
    return (UnitRow(*row) for row in rows)


def last_core_seq(connection: sqlite3.Connection) -> int:
    """Return the core_seq of the last change, 0 when there was none."""
    (core_seq,) = connection.execute("SELECT max(core_seq) FROM units").fetchone()
    return core_seq or 0


def active_between(connection: sqlite3.Connection, after: int, until: int, limit: int) -> Iterator[UnitRow]:
    """Yield the latest versions that are active with after < core_seq <= until, ascending, of all tenants."""
    rows = connection.execute(
        f"""
        SELECT {_COLUMNS}
        FROM units
        WHERE core_seq > :after AND core_seq <= :until AND latest = 1 AND status = 'active'
        ORDER BY core_seq
        LIMIT :limit
        """,
        {"after": after, "until": until, "limit": limit},
    )
    return (UnitRow(*row) for row in rows)


def versions_after(connection: sqlite3.Connection, after: int, limit: int) -> Iterator[UnitRow]:
    """Yield all versions with core_seq > after, ascending."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM units WHERE core_seq > :after ORDER BY core_seq LIMIT :limit",
        {"after": after, "limit": limit},
    )
    return (UnitRow(*row) for row in rows)


def version_at(connection: sqlite3.Connection, core_seq: int) -> UnitRow | None:
    """Return the version with this core_seq."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM units WHERE core_seq = :core_seq", {"core_seq": core_seq}
    ).fetchone()
    return None if row is None else UnitRow(*row)


def version_of(connection: sqlite3.Connection, unit_id: str, version: int) -> UnitRow | None:
    """Return a version of a unit, of whichever tenant."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM units WHERE unit_id = :unit_id AND version = :version",
        {"unit_id": unit_id, "version": version},
    ).fetchone()
    return None if row is None else UnitRow(*row)


def changed_units(connection: sqlite3.Connection, tenant: str, after: int, limit: int) -> list[str]:
    """Return the ids of units that changed after a core_seq, whatever they are now, the last changed first."""
    rows = connection.execute(
        """
        SELECT unit_id
        FROM units
        WHERE latest = 1 AND tenant = :tenant AND core_seq > :after
        ORDER BY core_seq DESC
        LIMIT :limit
        """,
        {"tenant": tenant, "after": after, "limit": limit},
    )
    return [unit_id for (unit_id,) in rows]


def changed_between(connection: sqlite3.Connection, after: int, until: int, limit: int) -> list[tuple[str, int]]:
    """Return the units of all tenants that changed last at after < core_seq <= until: id and core_seq, oldest first."""
    rows = connection.execute(
        """
        SELECT unit_id, core_seq
        FROM units
        WHERE latest = 1 AND core_seq > :after AND core_seq <= :until
        ORDER BY core_seq
        LIMIT :limit
        """,
        {"after": after, "until": until, "limit": limit},
    )
    return rows.fetchall()


def changed_after(connection: sqlite3.Connection, after: int, limit: int) -> list[tuple[str, int, str]]:
    """Return the units of all tenants that changed last after a core_seq: id, core_seq and status, oldest first."""
    rows = connection.execute(
        """
        SELECT unit_id, core_seq, status
        FROM units
        WHERE latest = 1 AND core_seq > :after
        ORDER BY core_seq
        LIMIT :limit
        """,
        {"after": after, "limit": limit},
    )
    return rows.fetchall()


def client_row(unit: UnitRow, redactor: Redactor, *, shown: bool = False) -> bytes:
    """Return a version as JSON for clients, redacted again; `shown` when an agent or a person reads it."""
    return encode_row(
        {
            "unit_id": unit.unit_id,
            "version": unit.version,
            "core_seq": unit.core_seq,
            "type": unit.type,
            "scope": unit.scope,
            "status": unit.status,
            "text": recall_text(redactor, unit.text, shown=shown),
            "facts": recall_json(redactor, unit.facts, shown=shown),
            "event_refs": raw_json(unit.event_refs),
            "confidence": unit.confidence,
            "parent_unit_id": unit.parent_unit_id,
            "tags": recall_json(redactor, unit.tags, shown=shown),
            "session_id": unit.session_id,
            "created_at": rfc3339(unit.created_at),
            "updated_at": rfc3339(unit.updated_at),
        }
    )


def builder_row(unit: UnitRow) -> bytes:
    """Return a version as msgpack for the builder: all members, times in µs."""
    members = unit._asdict()
    del members["latest"]
    members["tags"] = msgspec.json.decode(unit.tags, type=list[str])
    members["event_refs"] = msgspec.json.decode(unit.event_refs, type=list[str])
    members["facts"] = None if unit.facts is None else msgspec.json.decode(unit.facts)
    return msgspec.msgpack.encode(members)


def _check_event_refs(event_refs: tuple[str, ...], limits: CoreWriterSettings) -> str:
    if len(event_refs) > limits.event_refs_max:
        raise InvalidParams(
            f"unit.put refused: {len(event_refs)} event_refs, the limit is {limits.event_refs_max} "
            f"({_ROOM}.event_refs_max)"
        )
    for index, reference in enumerate(event_refs):
        check_id(_WHAT, f"event_refs[{index}]", reference, limits.id_chars_max, f"{_ROOM}.id_chars_max")
    return msgspec.json.encode(event_refs).decode()


def _latest(connection: sqlite3.Connection, unit_id: str) -> UnitRow | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM units WHERE unit_id = :unit_id AND latest = 1", {"unit_id": unit_id}
    ).fetchone()
    return None if row is None else UnitRow(*row)


def _supersede(connection: sqlite3.Connection, core_seq: int) -> None:
    connection.execute(
        """
        UPDATE units SET latest = 0, status = CASE status WHEN 'active' THEN 'deprecated' ELSE status END
        WHERE core_seq = :core_seq
        """,
        {"core_seq": core_seq},
    )


def _insert(connection: sqlite3.Connection, row: UnitRow) -> None:
    connection.execute(
        f"""
        INSERT INTO units ({_COLUMNS})
        VALUES (:core_seq, :unit_id, :version, :latest, :tenant, :session_id, :type, :scope, :status, :confidence,
                :parent_unit_id, :created_at, :updated_at, :tags, :event_refs, :facts, :text)
        """,
        row._asdict(),
    )
