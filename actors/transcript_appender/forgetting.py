"""Forgetting in the transcript: which events a scope holds, taking them out of the keyword index, erasing them.

An event is hidden first (`hidden.py`), then taken out of the keyword index while its words can still be read, then
erased in its segment. Each step does again only what is left, so a death between them costs nothing. What a damaged
segment holds can't be erased before it is restored: it is hidden until then.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec

from actors.messages.base import Filters
from actors.messages.forgetting import (
    EraseEvents,
    FindForgettable,
    ForgetSlice,
    ForgettableEvents,
    ForgottenEvent,
    LookForForgotten,
    UnindexEvents,
)
from actors.sql.database import Call, FileKind, Until, checkpoint, open_writer, transaction, wal_bytes
from actors.sql.filters import Where, where
from actors.sql.keywords import KeywordIndex
from actors.sql.rows import rows_limit
from actors.transcript_appender.catalogue import Book, Segment
from actors.transcript_appender.hidden import EMPTY_HASH, ERASED_SCOPE
from actors.transcript_appender.reading import Reading, summary
from actors.transcript_appender.search import document_of
from actors.transcript_appender.store import EventRow

# How many seqs a filter that has no index is held against in one call: about 10 ms.
_SCANNED = 20_000


def find(reading: Reading, message: FindForgettable) -> ForgettableEvents:
    """Return the next events of a scope that are not hidden yet."""
    condition, limit = _condition(message), rows_limit(message.limit)
    until = min(message.until, reading.last_seq())
    if condition is None or message.after >= until:
        return ForgettableEvents(events=[], cursor=message.until, more=False)
    indexed = message.scope.session_id is not None or message.scope.ids
    last = until if indexed else min(until, message.after + _SCANNED)
    found: list[ForgottenEvent] = []
    for event in _matching(reading, condition, message.after, last, limit):
        found.append(event)
        if len(found) == limit:
            last = event.seq
            break
    shown = [event for event in found if event.seq not in reading.hidden]
    return ForgettableEvents(events=shown, cursor=last if last < until else message.until, more=last < until)


def _matching(reading: Reading, condition: Where, after: int, until: int, limit: int) -> Iterator[ForgottenEvent]:
    for place in reading.places():
        connection = summary(place)  # an archived event is hidden like any other
        if connection is None or place.last <= after or place.first > until:
            continue
        rows = connection.execute(
            f"""
            SELECT t.event_id, t.seq
            FROM events AS t
            WHERE t.seq > :after AND t.seq <= :until AND {condition.sql}
            ORDER BY t.seq
            LIMIT :limit
            """,
            {**condition.parameters, "after": after, "until": until, "limit": limit},
        )
        for event_id, seq in rows:
            yield ForgottenEvent(event_id=event_id, seq=seq)


def _condition(message: FindForgettable) -> Where | None:
    scope = message.scope
    filters = Filters(
        session_ids=() if scope.session_id is None else (scope.session_id,),
        kinds=scope.kinds,
        tags=scope.tags,
        until=scope.before,
    )
    condition = where(filters, message.tenant, "events")
    if condition is None:
        return None
    sql, parameters = condition.sql, dict(condition.parameters)
    if scope.source is not None:
        sql, parameters["f_source"] = f"{sql} AND t.channel = :f_source", scope.source
    if scope.ids:
        sql = f"{sql} AND t.event_id IN (SELECT value FROM json_each(:f_ids))"
        parameters["f_ids"] = msgspec.json.encode(scope.ids).decode()
    return Where(sql, parameters)


def unindex(reading: Reading, index: KeywordIndex, message: UnindexEvents, until: Until) -> ForgetSlice:
    """Take events out of the keyword index. One whose words are gone already takes the whole file with it."""
    indexed = index.holds(message.seqs)
    events = [event for seq in indexed if (event := reading.event_at(seq)) is not None]
    if any(is_erased(event) for event in events):
        index.discard()
        return ForgetSlice(rows=len(indexed), more=False)
    return ForgetSlice(rows=index.remove([document_of(event) for event in events], until), more=False)


def erase(book: Book, kind: FileKind, connection: sqlite3.Connection, message: EraseEvents, call: Call) -> ForgetSlice:
    """Remove the content of events in whichever segment they stand.

    `waits`: some stand in a damaged segment, or in an archive, which nobody rewrites yet.
    """
    waits, rows = False, 0
    for segment, seqs in _by_segment(book, message.seqs):
        waits |= segment.state in ("damaged", "archived")
        if segment.state == "damaged":
            continue
        if segment.state == "active":
            rows += _erase_in(connection, seqs, call)
        else:
            with closing(open_writer(book.path_of(segment), kind, checked=True)) as writer:
                rows += _erase_in(writer, seqs, call)
    return ForgetSlice(rows=rows, more=False, waits=waits)


def _erase_in(connection: sqlite3.Connection, seqs: Sequence[int], call: Call) -> int:
    listed = msgspec.json.encode(seqs).decode()
    with transaction(connection, call):
        connection.execute("DELETE FROM recent WHERE seq IN (SELECT value FROM json_each(:seqs))", {"seqs": listed})
        return connection.execute(
            """
            UPDATE events
            SET scope = :scope, channel = NULL, project = NULL, trace_id = NULL, request_id = NULL,
                content_hash = :content_hash, tags = '[]', meta = NULL, content = ''
            WHERE seq IN (SELECT value FROM json_each(:seqs))
            """,
            {"seqs": listed, "scope": ERASED_SCOPE, "content_hash": EMPTY_HASH},
        ).rowcount


def _by_segment(book: Book, seqs: Sequence[int]) -> Iterator[tuple[Segment, list[int]]]:
    catalogue = book.catalogue
    for segment in catalogue.segments:
        last = catalogue.until(segment)
        if among := [seq for seq in seqs if segment.first_seq <= seq <= last]:
            yield segment, among


def scour_wals(book: Book, kind: FileKind, connection: sqlite3.Connection) -> ForgetSlice:
    """Copy the WALs of all segments into their files and cut them to nothing."""
    left = 0 if checkpoint(connection, "TRUNCATE") else 1
    for segment in book.catalogue.segments:
        path = book.path_of(segment)
        if segment.state != "sealed" or wal_bytes(path) == 0:
            continue
        with closing(open_writer(path, kind, checked=True)) as writer:
            left += not checkpoint(writer, "TRUNCATE")
    return ForgetSlice(rows=left, more=left > 0, waits=left > 0)


def look(reading: Reading, index: KeywordIndex, message: LookForForgotten) -> ForgetSlice:
    """Count events that still have content, or words in the keyword index."""
    events = [event for seq in message.seqs if (event := reading.event_at(seq)) is not None]
    full = {event.seq for event in events if not is_erased(event)}
    return ForgetSlice(rows=len(full | set(index.holds(message.seqs))), more=False)


def is_erased(event: EventRow) -> bool:
    """Say whether a row has no content any more."""
    return event.scope == ERASED_SCOPE and not event.content
