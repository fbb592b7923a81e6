"""Sessions: opened and closed by clients, adopted from the transcript. Statements and rules; times in µs."""

import re
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from actors.errors import InvalidParams, NotFound
from actors.messages.core_writer import ListSessions, SessionActivity
from actors.sql.rows import encode_row, raw_json, rfc3339

_COLUMNS = (
    "session_id, status, title, agent, meta, created_at, updated_at, last_active_at, closed_at, last_seq, events,"
    " archived_at"
)
# Where a row stands in the list: its last activity in µs, and its id, which may hold anything.
_CURSOR = re.compile(r"(-?[0-9]{1,18})\.(.*)", re.DOTALL)


class SessionRow(NamedTuple):
    """A row of `sessions`, in the order of _COLUMNS."""

    session_id: str
    status: str
    title: str | None
    agent: str | None
    meta: str | None
    created_at: int
    updated_at: int
    last_active_at: int
    closed_at: int | None
    last_seq: int
    events: int
    archived_at: int | None = None

    @property
    def state(self) -> str:
        """Return what clients see as its status: an archived one is a closed one that was put away."""
        return "archived" if self.archived_at is not None else self.status


def open_session(
    connection: sqlite3.Connection,
    *,
    tenant: str,
    session_id: str,
    title: str | None,
    agent: str | None,
    meta: str | None,
    now: int,
) -> SessionRow:
    """Create a session or open the one that exists; members that are given replace the stored ones."""
    row = connection.execute(
        f"""
        INSERT INTO sessions (tenant, session_id, status, title, agent, meta, created_at, updated_at, last_active_at)
        VALUES (:tenant, :session_id, 'open', :title, :agent, :meta, :now, :now, :now)
        ON CONFLICT (tenant, session_id) DO UPDATE SET
            status = 'open',
            title = coalesce(excluded.title, title),
            agent = coalesce(excluded.agent, agent),
            meta = coalesce(excluded.meta, meta),
            updated_at = excluded.updated_at,
            last_active_at = max(last_active_at, excluded.last_active_at),
            closed_at = NULL,
            closed_seq = NULL,
            archived_at = NULL
        RETURNING {_COLUMNS}
        """,
        {"tenant": tenant, "session_id": session_id, "title": title, "agent": agent, "meta": meta, "now": now},
    ).fetchone()
    return SessionRow(*row)


def close_session(connection: sqlite3.Connection, *, tenant: str, session_id: str, now: int) -> SessionRow:
    """Mark a session closed; closing a closed one changes nothing. Raises NotFound."""
    connection.execute(
        """
        UPDATE sessions SET status = 'closed', closed_at = :now, closed_seq = last_seq, updated_at = :now
        WHERE tenant = :tenant AND session_id = :session_id AND status = 'open'
        """,
        {"tenant": tenant, "session_id": session_id, "now": now},
    )
    return get_session(connection, tenant, session_id)


def archive_session(connection: sqlite3.Connection, *, tenant: str, session_id: str, now: int) -> SessionRow:
    """Close a session, if it is open, and put it away; archiving an archived one changes nothing. Raises NotFound."""
    close_session(connection, tenant=tenant, session_id=session_id, now=now)
    connection.execute(
        """
        UPDATE sessions SET archived_at = :now, updated_at = :now
        WHERE tenant = :tenant AND session_id = :session_id AND archived_at IS NULL
        """,
        {"tenant": tenant, "session_id": session_id, "now": now},
    )
    return get_session(connection, tenant, session_id)


def get_session(connection: sqlite3.Connection, tenant: str, session_id: str) -> SessionRow:
    """Return a session; raises NotFound."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM sessions WHERE tenant = :tenant AND session_id = :session_id",
        {"tenant": tenant, "session_id": session_id},
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no session {session_id!r}")
    return SessionRow(*row)


def list_sessions(connection: sqlite3.Connection, message: ListSessions, limit: int) -> Iterator[SessionRow]:
    """Yield sessions from the most recently active on, after the one with the cursor `before`."""
    # Of two ends the earlier one is where the page begins, so that nothing above it is looked at.
    until = (2**63 - 1, "") if message.until is None else (message.until, "")
    last_active_at, session_id = min(_position(message.before), until)
    conditions, parameters = _narrowed(message)
    rows = connection.execute(
        f"""
        SELECT {_COLUMNS}
        FROM sessions
        WHERE {" AND ".join(conditions)}
        ORDER BY last_active_at DESC, session_id DESC
        LIMIT :limit
        """,
        {"last_active_at": last_active_at, "before_id": session_id, "limit": limit, **parameters},
    )
    return (SessionRow(*row) for row in rows)


def _narrowed(message: ListSessions) -> tuple[list[str], dict[str, str | int]]:
    """Return the conditions of a list, and their parameters. Archived ones are listed when they are asked for."""
    conditions = ["tenant = :tenant", "(last_active_at, session_id) < (:last_active_at, :before_id)"]
    parameters: dict[str, str | int] = {"tenant": message.tenant}
    if message.status == "archived":
        conditions.append("archived_at IS NOT NULL")
    else:
        conditions.append("archived_at IS NULL")
        if message.status is not None:
            conditions.append("status = :status")
            parameters["status"] = message.status
    wanted: tuple[tuple[str, str, str | int | None], ...] = (
        ("agent", "agent = :agent", message.agent),
        ("since", "last_active_at >= :since", message.since),
    )
    for name, condition, value in wanted:
        if value is not None:
            conditions.append(condition)
            parameters[name] = value
    return conditions, parameters


def adopt_session(connection: sqlite3.Connection, activity: SessionActivity, now: int) -> None:
    """Take over what the transcript knows of a session. Older knowledge than what is stored changes nothing.

    A closed session opens again when it has an event that is newer than its closing: beyond the last one known then,
    and later by its time. The second, because an event may be adopted after a closing that it came before.
    """
    connection.execute(
        """
        INSERT INTO sessions
            (tenant, session_id, status, created_at, updated_at, last_active_at, last_seq, events)
        VALUES (:tenant, :session_id, 'open', :first_ts, :now, :last_ts, :last_seq, :events)
        ON CONFLICT (tenant, session_id) DO UPDATE SET
            status = CASE WHEN status = 'closed' AND excluded.last_seq > closed_seq
                AND excluded.last_active_at > closed_at THEN 'open' ELSE status END,
            archived_at = CASE WHEN excluded.last_seq > closed_seq AND excluded.last_active_at > closed_at
                THEN NULL ELSE archived_at END,
            created_at = min(created_at, excluded.created_at),
            updated_at = excluded.updated_at,
            last_active_at = max(last_active_at, excluded.last_active_at),
            last_seq = excluded.last_seq,
            events = excluded.events
        WHERE excluded.last_seq > last_seq
        """,
        {
            "tenant": activity.tenant,
            "session_id": activity.session_id,
            "first_ts": activity.first_ts,
            "last_ts": activity.last_ts,
            "last_seq": activity.last_seq,
            "events": activity.events,
            "now": now,
        },
    )


def client_row(session: SessionRow) -> bytes:
    """Return a session as JSON; `cursor` is where the page after it begins."""
    return encode_row(
        {
            "session_id": session.session_id,
            "status": session.state,
            "title": session.title,
            "agent": session.agent,
            "meta": raw_json(session.meta),
            "created_at": rfc3339(session.created_at),
            "updated_at": rfc3339(session.updated_at),
            "last_active_at": rfc3339(session.last_active_at),
            "closed_at": None if session.status == "open" or session.closed_at is None else rfc3339(session.closed_at),
            "archived_at": None if session.archived_at is None else rfc3339(session.archived_at),
            "last_seq": session.last_seq,
            "events": session.events,
            "cursor": f"{session.last_active_at}.{session.session_id}",
        }
    )


def _position(before: str | None) -> tuple[int, str]:
    """Return where a page begins; without a cursor, above every session."""
    if before is None:
        return 2**63 - 1, ""
    match = _CURSOR.fullmatch(before)
    if match is None:
        raise InvalidParams(
            f"session.list refused: before is {before!r}, it must be the cursor of a row that was listed"
        )
    return int(match[1]), match[2]
