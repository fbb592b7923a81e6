"""Which sessions are due for a summary, and the `summarize` jobs for them. Statements; times in µs.

`note_activity` is called in the transaction that learns of new events or of a closing, so no session is forgotten;
the job is made later, by the upkeep. A job names the events that no job before it covered. While nobody has begun it,
it grows with its session instead of being followed by another one.
"""

import sqlite3

import msgspec

from actors.core_writer import jobs, summary_rules
from actors.core_writer.subject import Subject, Writing
from actors.messages.jobs import AddJob

_SLICE_ROWS = 32


class SummaryRange(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a `summarize` job: the events of a session with after_seq < seq <= until_seq."""

    session_id: str
    after_seq: int
    until_seq: int
    events: int


def note_activity(writing: Writing, tenant: str, session_id: str) -> None:
    """Decide anew when a session is due, after its events or its status have changed."""
    session = _find_session(writing.connection, tenant, session_id)
    if session is None:
        return
    status, changed_at, _, events = session
    covered = _find_covered(writing.connection, tenant, session_id)
    due_at = summary_rules.due_at(
        closed=status != "open",
        new_events=events - (covered[1] if covered is not None else 0),
        changed_at=changed_at,
        now=writing.now,
        limits=writing.limits,
    )
    if due_at is None and covered is None:
        return
    writing.connection.execute(
        """
        INSERT INTO summaries (tenant, session_id, until_seq, events, due_at)
        VALUES (:tenant, :session_id, 0, 0, :due_at)
        ON CONFLICT (tenant, session_id) DO UPDATE SET due_at = excluded.due_at
        WHERE due_at IS NOT excluded.due_at
        """,
        {"tenant": tenant, "session_id": session_id, "due_at": due_at},
    )


def _upkeep(writing: Writing) -> bool:
    """Make the jobs of some of the sessions that are due."""
    due = writing.connection.execute(
        """
        SELECT tenant, session_id FROM summaries WHERE due_at IS NOT NULL AND due_at <= :now
        UNION ALL
        SELECT tenant, session_id FROM summaries WHERE due_at IS NOT NULL AND due_at > :horizon
        LIMIT :limit
        """,
        {
            "now": writing.now,
            "horizon": summary_rules.horizon(now=writing.now, limits=writing.limits),
            "limit": _SLICE_ROWS,
        },
    ).fetchall()
    for tenant, session_id in due:
        _make_job(writing, tenant, session_id)
    return len(due) == _SLICE_ROWS


def _make_job(writing: Writing, tenant: str, session_id: str) -> None:
    session = _find_session(writing.connection, tenant, session_id)
    covered = _find_covered(writing.connection, tenant, session_id)
    assert covered is not None, "only a session with a row is due"
    until_seq, events, job_id = covered
    if session is not None and session[3] > events:
        _, _, last_seq, session_events = session
        job_id = _cover(writing, (tenant, session_id), covered, last_seq, session_events)
        until_seq, events = last_seq, session_events
    writing.connection.execute(
        """
        UPDATE summaries SET until_seq = :until_seq, events = :events, job_id = :job_id, due_at = NULL
        WHERE tenant = :tenant AND session_id = :session_id
        """,
        {"tenant": tenant, "session_id": session_id, "until_seq": until_seq, "events": events, "job_id": job_id},
    )


def _cover(
    writing: Writing, session: tuple[str, str], covered: tuple[int, int, str | None], last_seq: int, session_events: int
) -> str:
    """Give the new events of a session to its last job when nobody has begun that, else to a new one; return its id."""
    (tenant, session_id), (until_seq, events, job_id) = session, covered
    payload = jobs.unbegun_payload(writing.connection, job_id) if job_id is not None else None
    if job_id is not None and payload is not None:
        waiting = msgspec.json.decode(payload, type=SummaryRange)
        longer = msgspec.structs.replace(waiting, until_seq=last_seq, events=waiting.events + session_events - events)
        jobs.replace_payload(writing.connection, job_id, msgspec.json.encode(longer).decode())
        return job_id
    fresh = SummaryRange(session_id=session_id, after_seq=until_seq, until_seq=last_seq, events=session_events - events)
    message = AddJob(kind="summarize", payload=msgspec.to_builtins(fresh), session_id=session_id, tenant=tenant)
    return jobs.add_job(writing, message).job_id


def _find_session(connection: sqlite3.Connection, tenant: str, session_id: str) -> tuple[str, int, int, int] | None:
    """Return status, updated_at, last_seq and the number of events."""
    row: tuple[str, int, int, int] | None = connection.execute(
        """
        SELECT status, updated_at, last_seq, events
        FROM sessions
        WHERE tenant = :tenant AND session_id = :session_id
        """,
        {"tenant": tenant, "session_id": session_id},
    ).fetchone()
    return row


def _find_covered(connection: sqlite3.Connection, tenant: str, session_id: str) -> tuple[int, int, str | None] | None:
    """Return up to where jobs cover a session, how many events it had then, and the last of these jobs."""
    row: tuple[int, int, str | None] | None = connection.execute(
        "SELECT until_seq, events, job_id FROM summaries WHERE tenant = :tenant AND session_id = :session_id",
        {"tenant": tenant, "session_id": session_id},
    ).fetchone()
    return row


SUBJECT = Subject(upkeep=_upkeep)
