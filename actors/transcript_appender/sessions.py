"""The summary of sessions in the transcript: which exist, since when, how many events. The statements."""

import sqlite3
from typing import NamedTuple

from actors.messages.core_writer import SessionActivity


class Addition(NamedTuple):
    """What one append adds to a session."""

    session_id: str
    first_ts: int
    last_ts: int
    first_seq: int
    last_seq: int
    events: int

    def plus(self, ts: int, seq: int) -> "Addition":
        """Return the addition with one more event."""
        return self._replace(
            first_ts=min(self.first_ts, ts), last_ts=max(self.last_ts, ts), last_seq=seq, events=self.events + 1
        )


def add_to_session(connection: sqlite3.Connection, tenant: str, addition: Addition) -> bool:
    """Add events to the summary of their session; return whether the session is new."""
    (events,) = connection.execute(
        """
        INSERT INTO sessions (tenant, session_id, first_ts, last_ts, first_seq, last_seq, events)
        VALUES (:tenant, :session_id, :first_ts, :last_ts, :first_seq, :last_seq, :events)
        ON CONFLICT (tenant, session_id) DO UPDATE SET
            first_ts = min(first_ts, excluded.first_ts),
            last_ts = max(last_ts, excluded.last_ts),
            last_seq = excluded.last_seq,
            events = events + excluded.events
        RETURNING events
        """,
        {"tenant": tenant, **addition._asdict()},
    ).fetchone()
    return bool(events == addition.events)


def count_anew(connection: sqlite3.Connection) -> None:
    """Make the summary from the events."""
    connection.execute("DELETE FROM sessions")
    connection.execute(
        """
        INSERT INTO sessions (tenant, session_id, first_ts, last_ts, first_seq, last_seq, events)
        SELECT tenant, session_id, min(ts), max(ts), min(seq), max(seq), count(*)
        FROM events
        GROUP BY tenant, session_id
        """
    )


def find_session(connection: sqlite3.Connection, tenant: str, session_id: str) -> SessionActivity | None:
    """Return the summary of one session, None when it has no event here."""
    row = connection.execute(
        """
        SELECT session_id, tenant, first_ts, last_ts, last_seq, events
        FROM sessions
        WHERE tenant = :tenant AND session_id = :session_id
        """,
        {"tenant": tenant, "session_id": session_id},
    ).fetchone()
    return None if row is None else _activity(row)


def sessions_since(connection: sqlite3.Connection, cursor: int, limit: int) -> list[SessionActivity]:
    """Return sessions whose last event has a seq above the cursor, by that seq."""
    rows = connection.execute(
        """
        SELECT session_id, tenant, first_ts, last_ts, last_seq, events
        FROM sessions
        WHERE last_seq > :cursor
        ORDER BY last_seq
        LIMIT :limit
        """,
        {"cursor": cursor, "limit": limit},
    )
    return [_activity(row) for row in rows]


def count_sessions(connection: sqlite3.Connection) -> int:
    """Return how many sessions there are."""
    (count,) = connection.execute("SELECT count(*) FROM sessions").fetchone()
    return int(count)


def names(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return (tenant, session_id) of all sessions."""
    return connection.execute("SELECT tenant, session_id FROM sessions").fetchall()


def _activity(row: tuple[str, str, int, int, int, int]) -> SessionActivity:
    session_id, tenant, first_ts, last_ts, last_seq, events = row
    return SessionActivity(
        session_id=session_id, tenant=tenant, first_ts=first_ts, last_ts=last_ts, last_seq=last_seq, events=events
    )
