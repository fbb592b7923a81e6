"""Which units rest on which events, in both directions; how a version of a unit differs from another."""

import difflib
import sqlite3
from collections.abc import Callable, Iterator

import msgspec

from actors.core_writer import units
from actors.core_writer.units import UnitRow
from actors.errors import InvalidParams
from actors.messages.base import Row, Rows
from actors.messages.unit_refs import DiffUnit, UnitsOfEvent
from actors.redaction import Redactor, recall_json, recall_text
from actors.sql.rows import encode_row, page, rows_limit

# Comparing two long texts line by line takes seconds; people read shorter ones.
DIFF_BYTES_MAX = 128 * 1024
_CONTEXT_LINES = 3
_MEMBERS = ("type", "scope", "status", "confidence", "parent_unit_id", "session_id", "tags", "event_refs", "facts")
_JSON = ("tags", "event_refs", "facts")


def replace(connection: sqlite3.Connection, unit: UnitRow) -> None:
    """Note what the latest version of a unit rests on, in the place of what the one before did."""
    drop(connection, unit.unit_id)
    connection.execute(
        """
        INSERT OR IGNORE INTO unit_refs (tenant, event_id, unit_id)
        SELECT :tenant, value, :unit_id FROM json_each(:event_refs)
        """,
        {"tenant": unit.tenant, "unit_id": unit.unit_id, "event_refs": unit.event_refs},
    )


def drop(connection: sqlite3.Connection, unit_id: str) -> None:
    """Forget what a unit rests on."""
    connection.execute("DELETE FROM unit_refs WHERE unit_id = :unit_id", {"unit_id": unit_id})


def count_anew(connection: sqlite3.Connection) -> None:
    """Derive all of it from the units."""
    connection.execute("DELETE FROM unit_refs")
    connection.execute(
        """
        INSERT OR IGNORE INTO unit_refs (tenant, event_id, unit_id)
        SELECT u.tenant, r.value, u.unit_id FROM units AS u, json_each(u.event_refs) AS r WHERE u.latest = 1
        """
    )


def units_of_event(connection: sqlite3.Connection, message: UnitsOfEvent, row_of: Callable[[UnitRow], bytes]) -> Rows:
    """Return a page of the units that rest on an event."""
    limit = rows_limit(message.limit)
    return page(map(row_of, _resting(connection, message, limit + 1)), limit)


def diff(connection: sqlite3.Connection, message: DiffUnit, redactor: Redactor) -> Row:
    """Compare two versions: members that differ, and the texts as a unified diff. Raises NotFound, InvalidParams."""
    earlier = units.get_unit(connection, message.tenant, message.unit_id, message.from_version)
    later = units.get_unit(connection, message.tenant, message.unit_id, message.to_version)
    size = len(earlier.text.encode()) + len(later.text.encode())
    if size > DIFF_BYTES_MAX:
        raise InvalidParams(
            f"unit.diff refused: the two texts are {size} bytes, the limit is {DIFF_BYTES_MAX}",
            hint="read both versions with unit.get and compare them yourself",
        )
    lines = difflib.unified_diff(
        earlier.text.splitlines(),
        later.text.splitlines(),
        f"version {earlier.version}",
        f"version {later.version}",
        n=_CONTEXT_LINES,
        lineterm="",
    )
    changed = [name for name in _MEMBERS if _differs(earlier, later, name)]
    return Row(
        row=encode_row(
            {
                "unit_id": message.unit_id,
                "from_version": earlier.version,
                "to_version": later.version,
                "changed": {name: _change(earlier, later, name, redactor) for name in changed},
                "text": recall_text(redactor, "\n".join(lines), shown=False),
            }
        )
    )


def _resting(connection: sqlite3.Connection, message: UnitsOfEvent, limit: int) -> Iterator[UnitRow]:
    columns = ", ".join(f"u.{name}" for name in UnitRow._fields)
    rows = connection.execute(
        f"""
        SELECT {columns}
        FROM unit_refs AS r
        JOIN units AS u ON u.unit_id = r.unit_id AND u.latest = 1
        WHERE r.tenant = :tenant AND r.event_id = :event_id AND r.unit_id > :after
            AND (:status IS NULL OR u.status = :status)
        ORDER BY r.unit_id
        LIMIT :limit
        """,
        {
            "tenant": message.tenant,
            "event_id": message.event_id,
            "after": message.after or "",
            "status": message.status,
            "limit": limit,
        },
    )
    return (UnitRow(*row) for row in rows)


def _differs(earlier: UnitRow, later: UnitRow, name: str) -> bool:
    one, other = getattr(earlier, name), getattr(later, name)
    if name in _JSON and one is not None and other is not None:
        return bool(msgspec.json.decode(one) != msgspec.json.decode(other))
    return bool(one != other)


def _change(earlier: UnitRow, later: UnitRow, name: str, redactor: Redactor) -> dict[str, object]:
    one, other = getattr(earlier, name), getattr(later, name)
    if name not in _JSON:
        return {"from": one, "to": other}
    return {"from": recall_json(redactor, one, shown=False), "to": recall_json(redactor, other, shown=False)}
