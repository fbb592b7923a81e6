"""Keyword search in the transcript: which rows the index gets, and what becomes of its hits."""

import sqlite3
from collections.abc import Callable, Sequence

import msgspec

from actors.messages import Candidate, Candidates, SearchEvents
from actors.sql.database import Until
from actors.sql.filters import where
from actors.sql.keywords import Document, Hit, KeywordIndex, Question, Slice
from actors.sql.rows import rows_limit
from actors.terms import event_terms
from actors.text import analyse_query, snippet
from actors.transcript_appender import store

_SLICE_CHARS_MAX = 256 * 1024
_ROWS = "truth.events AS t ON t.seq = h.rowid"


class EventSource:
    """What the keyword index follows: the events, by seq. `connection` gives the reading connection."""

    def __init__(self, connection: Callable[[], sqlite3.Connection]) -> None:
        self._connection = connection

    def latest(self) -> int:
        """Return the last seq."""
        return store.last_seq(self._connection())

    def slice(self, after: int, rows_max: int) -> Slice | None:
        """Return the terms of the next events, at most `rows_max` and about 256 Ki characters of content."""
        documents: list[Document] = []
        size, mark = 0, ""
        for event in store.events_between(self._connection(), after, after + rows_max, rows_max):
            documents.append(Document(event.seq, " ".join(event_terms(event.content, event.ts))))
            size, mark = size + len(event.content), event.event_id
            if size >= _SLICE_CHARS_MAX:
                break
        if not documents:
            return None
        return Slice(added=documents, removed=[], cursor=documents[-1].rowid, mark=mark)

    def mark(self, rowid: int) -> str | None:
        """Return the id of the event with this seq."""
        event = store.event_at(self._connection(), rowid)
        return None if event is None else event.event_id


def search_events(
    connection: sqlite3.Connection,
    index: KeywordIndex,
    message: SearchEvents,
    *,
    until: Until,
    slice_rows: int,
    snippet_chars_max: int,
) -> Candidates:
    """Answer a search; what the index can't reach in time is counted as behind."""
    condition = where(message.filters, message.tenant, "events")
    terms = analyse_query(message.query)
    latest = store.last_seq(connection)
    if condition is None or not terms or latest <= message.newer_than:
        return Candidates(found=[], latest=latest)
    question = Question(terms, message.newer_than, _ROWS, condition, rows_limit(message.limit))
    hits, behind = index.search(question, until=until, rows_per_slice=slice_rows)
    found = [_candidate(connection, hit, terms, snippet_chars_max) for hit in hits]
    return Candidates(found=[candidate for candidate in found if candidate is not None], latest=latest, behind=behind)


def _candidate(
    connection: sqlite3.Connection, hit: Hit, terms: Sequence[str], snippet_chars_max: int
) -> Candidate | None:
    event = store.event_at(connection, hit.rowid)
    if event is None:
        return None
    return Candidate(
        id=event.event_id,
        corpus="events",
        text_score=hit.score,
        snippet=snippet(event.content, terms, snippet_chars_max),
        ts=event.ts,
        seq=event.seq,
        session_id=event.session_id,
        actor=event.actor,
        kind=event.kind,
        scope=event.scope,
        tags=msgspec.json.decode(event.tags, type=tuple[str, ...]),
    )
