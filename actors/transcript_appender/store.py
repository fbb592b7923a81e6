"""Events on disk: the kind of file, and one function a statement. Times are µs since the epoch, UTC."""

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from actors.redaction import Redactor, recall_json, recall_text
from actors.settings import TranscriptAppenderSettings
from actors.sql.database import FileKind, read_schema
from actors.sql.rows import encode_row, rfc3339
from actors.transcript_appender.drafts import Prepared

# Names in the table `meta`: the last time that was given; the first seq of the segment (absent: 1); whether the file
# was put in the place of a damaged one.
CLOCK = "clock"
FIRST_SEQ = "first_seq"
RESTORED = "restored"
# In the note beside files that come from a backup: the last seq that may have been given out.
SEQ = "seq"
COLUMNS = (
    "seq, event_id, tenant, session_id, ts, kind, actor, scope, channel, project, trace_id, request_id,"
    " content_hash, tags, meta, content"
)


def file_kind(limits: TranscriptAppenderSettings) -> FileKind:
    """Return what kind of file a segment of the transcript is."""
    return FileKind(
        name="transcript",
        application_id=0x62685452,
        user_version=1,
        schema=read_schema(__package__),
        synchronous="FULL",
        busy_timeout_ms=limits.busy_timeout_ms,
        journal_bytes_max=limits.wal_bytes_max,
    )


class Place(NamedTuple):
    """Where an event stands."""

    seq: int
    event_id: str
    tenant: str


class EventRow(NamedTuple):
    """A row of `events`, in the order of its columns."""

    seq: int
    event_id: str
    tenant: str
    session_id: str
    ts: int
    kind: str
    actor: str
    scope: str
    channel: str | None
    project: str | None
    trace_id: str | None
    request_id: str | None
    content_hash: bytes
    tags: str
    meta: str | None
    content: str


def is_intact(event: EventRow) -> bool:
    """Say whether the content is still what its hash was made of: SQLite's own checks don't look at the bits of it."""
    return is_content_of(event.content, event.content_hash)


def is_content_of(content: str, content_hash: bytes) -> bool:
    """Say whether a hash was made of this content."""
    return hashlib.sha256(content.encode()).digest() == content_hash


def last_seq(connection: sqlite3.Connection) -> int:
    """Return the seq of the newest event, 0 when there is none."""
    (seq,) = connection.execute("SELECT max(seq) FROM events").fetchone()
    return seq or 0


def count_last(connection: sqlite3.Connection, rows: int) -> int:
    """Return how many of the last `rows` seqs exist."""
    (count,) = connection.execute(
        "SELECT count(*) FROM events WHERE seq > (SELECT max(seq) FROM events) - :rows", {"rows": rows}
    ).fetchone()
    return int(count)


def insert_event(
    connection: sqlite3.Connection, *, seq: int, event_id: str, tenant: str, ts: int, event: Prepared
) -> None:
    """Add one event."""
    draft = event.draft
    connection.execute(
        f"""
        INSERT INTO events ({COLUMNS})
        VALUES (:seq, :event_id, :tenant, :session_id, :ts, :kind, :actor, :scope, :channel, :project, :trace_id,
                :request_id, :content_hash, :tags, :meta, :content)
        """,
        {
            "seq": seq,
            "event_id": event_id,
            "tenant": tenant,
            "session_id": draft.session_id,
            "ts": ts,
            "kind": draft.kind,
            "actor": draft.actor,
            "scope": draft.scope,
            "channel": draft.channel,
            "project": draft.project,
            "trace_id": draft.trace_id,
            "request_id": draft.request_id,
            "content_hash": event.content_hash,
            "tags": event.tags,
            "meta": event.meta,
            "content": draft.content,
        },
    )


def copy_event(connection: sqlite3.Connection, event: EventRow) -> None:
    """Add an event as it stands in another segment, with its request; one that is there already stays as it is."""
    names = ", ".join(f":{name}" for name in EventRow._fields)
    connection.execute(f"INSERT OR IGNORE INTO events ({COLUMNS}) VALUES ({names})", event._asdict())
    if event.request_id is not None:
        remember_request(connection, event.tenant, event.request_id, event.seq)


def copy_request(connection: sqlite3.Connection, tenant: str, request_id: str, seq: int) -> None:
    """Note a request as it stands in another segment, when the event that it led to is here and of the same tenant."""
    connection.execute(
        """
        INSERT OR IGNORE INTO requests (tenant, request_id, seq)
        SELECT :tenant, :request_id, seq FROM events WHERE seq = :seq AND tenant = :tenant
        """,
        {"tenant": tenant, "request_id": request_id, "seq": seq},
    )


def count_events(connection: sqlite3.Connection) -> int:
    """Return how many events there are, by counting them."""
    (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
    return int(count)


def find_holes(connection: sqlite3.Connection, first: int, last: int, holes_max: int) -> list[tuple[int, int]]:
    """Return the ranges (first, last) of seqs that have no event; beyond `holes_max` the last one takes the rest."""
    rows = connection.execute(
        """
        SELECT seq + 1, following - 1
        FROM (SELECT seq, lead(seq, 1, :after) OVER (ORDER BY seq) AS following FROM events)
        WHERE following > seq + 1
        ORDER BY seq
        LIMIT :limit
        """,
        {"after": last + 1, "limit": holes_max},
    )
    holes = [(int(one), int(other)) for one, other in rows]
    (lowest,) = connection.execute("SELECT coalesce(min(seq), :after) FROM events", {"after": last + 1}).fetchone()
    if lowest > first:
        holes.insert(0, (first, lowest - 1))
    if len(holes) >= holes_max:
        holes = [*holes[: holes_max - 1], (holes[holes_max - 1][0], last)]
    return holes


def place_by_event_id(connection: sqlite3.Connection, event_id: str) -> Place | None:
    """Return where the event with this id stands, in whichever tenant."""
    row = connection.execute(
        "SELECT seq, event_id, tenant FROM events WHERE event_id = :event_id", {"event_id": event_id}
    ).fetchone()
    return None if row is None else Place(*row)


def place_by_request(connection: sqlite3.Connection, tenant: str, request_id: str) -> Place | None:
    """Return which event a request of this tenant led to."""
    row = connection.execute(
        """
        SELECT e.seq, e.event_id, e.tenant
        FROM requests AS r
        JOIN events AS e ON e.seq = r.seq
        WHERE r.tenant = :tenant AND r.request_id = :request_id
        """,
        {"tenant": tenant, "request_id": request_id},
    ).fetchone()
    return None if row is None else Place(*row)


def seq_of_request(connection: sqlite3.Connection, tenant: str, request_id: str) -> int | None:
    """Return the seq that was noted for a request, which may be of an event in an earlier segment."""
    row = connection.execute(
        "SELECT seq FROM requests WHERE tenant = :tenant AND request_id = :request_id",
        {"tenant": tenant, "request_id": request_id},
    ).fetchone()
    return None if row is None else int(row[0])


def place_at(connection: sqlite3.Connection, seq: int) -> Place | None:
    """Return the event with this seq."""
    row = connection.execute("SELECT seq, event_id, tenant FROM events WHERE seq = :seq", {"seq": seq}).fetchone()
    return None if row is None else Place(*row)


def remember_request(connection: sqlite3.Connection, tenant: str, request_id: str, seq: int) -> None:
    """Note which event a request led to; the first note stays."""
    connection.execute(
        """
        INSERT INTO requests (tenant, request_id, seq) VALUES (:tenant, :request_id, :seq)
        ON CONFLICT (tenant, request_id) DO NOTHING
        """,
        {"tenant": tenant, "request_id": request_id, "seq": seq},
    )


def recent_place(connection: sqlite3.Connection, key: bytes, ts: int, window_us: int) -> Place | None:
    """Return the event with this key whose time is within the window around `ts`."""
    row = connection.execute(
        """
        SELECT e.seq, e.event_id, e.tenant
        FROM recent AS r
        JOIN events AS e ON e.seq = r.seq
        WHERE r.key = :key AND r.ts BETWEEN :ts - :window_us AND :ts + :window_us
        """,
        {"key": key, "ts": ts, "window_us": window_us},
    ).fetchone()
    return None if row is None else Place(*row)


def remember_recent(connection: sqlite3.Connection, key: bytes, *, seq: int, ts: int, seen: int) -> None:
    """Note an event that may be sent again."""
    connection.execute(
        """
        INSERT INTO recent (key, seq, ts, seen) VALUES (:key, :seq, :ts, :seen)
        ON CONFLICT (key) DO UPDATE SET seq = excluded.seq, ts = excluded.ts, seen = excluded.seen
        """,
        {"key": key, "seq": seq, "ts": ts, "seen": seen},
    )


def forget_recent(connection: sqlite3.Connection, seen_before: int, rows_max: int) -> int:
    """Drop notes that are too old to matter; return how many."""
    return connection.execute(
        """
        DELETE FROM recent
        WHERE key IN (SELECT key FROM recent WHERE seen < :seen_before ORDER BY seen LIMIT :rows_max)
        """,
        {"seen_before": seen_before, "rows_max": rows_max},
    ).rowcount


def get_event(connection: sqlite3.Connection, tenant: str, event_id: str) -> EventRow | None:
    """Return an event of a tenant."""
    row = connection.execute(
        f"SELECT {COLUMNS} FROM events WHERE event_id = :event_id AND tenant = :tenant",
        {"event_id": event_id, "tenant": tenant},
    ).fetchone()
    return None if row is None else EventRow(*row)


def session_after(
    connection: sqlite3.Connection, tenant: str, session_id: str, after_seq: int, limit: int
) -> Iterator[EventRow]:
    """Yield the events of a session with seq > after_seq, ascending."""
    rows = connection.execute(
        f"""
        SELECT {COLUMNS}
        FROM events
        WHERE tenant = :tenant AND session_id = :session_id AND seq > :after_seq
        ORDER BY seq
        LIMIT :limit
        """,
        {"tenant": tenant, "session_id": session_id, "after_seq": after_seq, "limit": limit},
    )
    return (EventRow(*row) for row in rows)


def session_before(
    connection: sqlite3.Connection, tenant: str, session_id: str, before_seq: int, limit: int
) -> Iterator[EventRow]:
    """Yield the events of a session with seq < before_seq, descending."""
    rows = connection.execute(
        f"""
        SELECT {COLUMNS}
        FROM events
        WHERE tenant = :tenant AND session_id = :session_id AND seq < :before_seq
        ORDER BY seq DESC
        LIMIT :limit
        """,
        {"tenant": tenant, "session_id": session_id, "before_seq": before_seq, "limit": limit},
    )
    return (EventRow(*row) for row in rows)


def events_between(connection: sqlite3.Connection, after: int, until: int, limit: int) -> Iterator[EventRow]:
    """Yield the events with after < seq <= until, ascending, of all tenants."""
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM events WHERE seq > :after AND seq <= :until ORDER BY seq LIMIT :limit",
        {"after": after, "until": until, "limit": limit},
    )
    return (EventRow(*row) for row in rows)


def event_at(connection: sqlite3.Connection, seq: int) -> EventRow | None:
    """Return the event with this seq."""
    row = connection.execute(f"SELECT {COLUMNS} FROM events WHERE seq = :seq", {"seq": seq}).fetchone()
    return None if row is None else EventRow(*row)


def client_row(event: EventRow, redactor: Redactor, *, shown: bool = False) -> bytes:
    """Return an event as JSON for clients, redacted again; `shown` when an agent or a person reads it."""
    return encode_row(
        {
            "event_id": event.event_id,
            "seq": event.seq,
            "ts": rfc3339(event.ts),
            "kind": event.kind,
            "actor": event.actor,
            "session_id": event.session_id,
            "channel": event.channel,
            "project": event.project,
            "content": recall_text(redactor, event.content, shown=shown),
            "content_hash": event.content_hash.hex(),
            "tags": recall_json(redactor, event.tags, shown=shown),
            "trace_id": event.trace_id,
            "request_id": event.request_id,
            "meta": recall_json(redactor, event.meta, shown=shown),
            "scope": event.scope,
        }
    )


def placed_row(event: EventRow, state: str) -> bytes:
    """Return as JSON where an event stands, without what it says."""
    return encode_row(
        {
            "event_id": event.event_id,
            "state": state,
            "seq": event.seq,
            "ts": rfc3339(event.ts),
            "session_id": event.session_id,
            "kind": event.kind,
            "actor": event.actor,
        }
    )


def whole_row(event: EventRow) -> bytes:
    """Return an event as msgpack with every member, by the names of the columns."""
    return msgspec.msgpack.encode(event._asdict())


def builder_row(event: EventRow) -> bytes:
    """Return an event as msgpack for the builder: what an index needs to know, times in µs, the hash as bytes."""
    return msgspec.msgpack.encode(
        {
            "event_id": event.event_id,
            "seq": event.seq,
            "ts": event.ts,
            "kind": event.kind,
            "actor": event.actor,
            "tenant": event.tenant,
            "scope": event.scope,
            "session_id": event.session_id,
            "channel": event.channel,
            "project": event.project,
            "content": event.content,
            "content_hash": event.content_hash,
            "tags": msgspec.json.decode(event.tags, type=list[str]),
        }
    )
