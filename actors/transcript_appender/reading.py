"""Reading over all segments: the earlier ones of a shelf, then the active one.

A row is only given out when its content matches its hash and the rest of it could have been written. Rows of a readable
copy were looked at when they were copied; one that fails anywhere else is damage that SQLite can't see, and ends the
process, so that the next one looks at that segment closely. What may be missing because a segment is damaged is said in
the answer.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from actors.child import StoreLost
from actors.errors import Conflict, InvalidParams, NotFound, StoreBroken, StoreBusy
from actors.messages.archives import FindArchived, PageWholeEvents, WholeEvents
from actors.messages.base import Row, Rows
from actors.messages.core_writer import SessionActivity
from actors.messages.exporting import Exported, ExportEvents
from actors.messages.transcript_appender import (
    EventPage,
    GetEvent,
    PageEvents,
    SessionHistory,
    SessionPage,
    SessionsSince,
)
from actors.messages.unit_refs import PlaceEvents
from actors.redaction import Redactor
from actors.sql.rows import PAGE_BYTES_MAX, encode_row, page, rows_limit
from actors.transcript_appender import archiving, sessions, store
from actors.transcript_appender.catalogue import SEQ_MAX, Book, Suspicion
from actors.transcript_appender.hidden import Hidden, erased
from actors.transcript_appender.salvage import Salvage
from actors.transcript_appender.shelf import Part, Shelf, overlaps
from actors.transcript_appender.soundness import is_sound
from actors.transcript_appender.store import EventRow

DAMAGED = "segment_damaged"
ARCHIVED = "archived"
# How long a read waits for the copy of a damaged segment to come down to where it looks.
WAIT_S = 0.5
_RETRY_AFTER_MS = 1000

Degraded = tuple[tuple[str, str], ...]
Query = Callable[[sqlite3.Connection], Iterable[EventRow]]


class Place(NamedTuple):
    """One segment to read: what it may hold, its connection (None: nothing can be read, or it is archived), and the
    part of the shelf (None: the active one)."""

    number: int
    first: int
    last: int
    connection: sqlite3.Connection | None
    part: Part | None


class Reading:
    """Reads of one lane. `active` gives the connection of the active segment."""

    def __init__(
        self,
        book: Book,
        salvage: Salvage,
        shelf: Shelf,
        active: Callable[[], sqlite3.Connection],
        *,
        redactor: Redactor,
        hidden: Hidden,
    ) -> None:
        self._book = book
        self._salvage = salvage
        self._shelf = shelf
        self._active = active
        self._redactor = redactor
        self.hidden = hidden
        self._sessions_at: tuple[int, ...] = ()
        self._sessions = 0

    # ------------------------------------------------------------ what clients ask for

    def get_event(self, message: GetEvent) -> Row:
        """Return an event of a tenant; NotFound says when a damaged segment may have had it."""
        self._wait(0, SEQ_MAX)
        for place in reversed(self.places()):
            for event in self.rows(place, lambda connection: _one(connection, message)):
                if not self.hidden.hides(event):
                    return Row(row=store.client_row(event, self._redactor, shown=message.shown))
        if (name := self._archive_with(message)) is not None:
            raise NotFound(
                f"event {message.event_id!r} is archived, in {name}",
                hint="archive.search tells what is known of it; any reader of Parquet files reads what it says",
            )
        raise NotFound(f"there is no event {message.event_id!r}", hint=self._hint())

    def place_events(self, message: PlaceEvents) -> Rows:
        """Return where events are, in the order that was asked for; what a damaged segment had is missing."""
        self._wait(0, SEQ_MAX)
        rows = [self._placed(message.tenant, event_id) for event_id in message.event_ids]
        return page(rows, max(1, len(rows)))

    def _placed(self, tenant: str, event_id: str) -> bytes:
        message = GetEvent(event_id=event_id, tenant=tenant)
        for place in reversed(self.places()):
            for event in self.rows(place, lambda connection: _one(connection, message)):
                if not self.hidden.hides(event):
                    return store.placed_row(event, "present")
        for part in self._shelf.parts():
            if part.is_archived and part.database is not None:
                with self._shelf.watched(part):
                    found = store.get_event(part.database.connection, tenant, event_id)
                if found is not None and not self.hidden.hides(found):
                    return store.placed_row(found, "archived")
        return encode_row({"event_id": event_id, "state": "missing"})

    def find_archived(self, message: FindArchived) -> Rows:
        """Return a page of archived events, without what they say."""
        limit = rows_limit(message.limit)
        rows: list[bytes] = []
        for part in self._shelf.parts():
            if not part.is_archived or part.database is None or part.last <= message.after_seq:
                continue
            with self._shelf.watched(part):
                for event in archiving.find(part.database.connection, message):
                    if not self.hidden.hides(event):
                        rows.append(archiving.archived_row(event, part.segment.archive))
                    if len(rows) > limit:
                        break
            if len(rows) > limit:
                break
        return page(rows, limit)

    def page_whole(self, message: PageWholeEvents) -> WholeEvents:
        """Return a page of a sealed segment with every member of the events."""
        part = next((each for each in self._shelf.parts() if each.segment.number == message.number), None)
        if part is None or part.segment.state != "sealed":
            raise Conflict(f"archiving refused: segment {message.number} is not a sealed one")
        limit = rows_limit(message.limit)
        place = Place(message.number, part.first, part.last, _connection(part), part)
        rows: list[msgspec.Raw] = []
        size, last_seq, more = 0, message.after, False
        for event in self.rows(place, lambda each: store.events_between(each, message.after, part.last, limit + 1)):
            row = store.whole_row(erased(event) if self.hidden.hides(event) else event)
            if len(rows) == limit or (rows and size + len(row) > message.bytes_max):
                more = True
                break
            rows.append(msgspec.Raw(row))
            size, last_seq = size + len(row), event.seq
        return WholeEvents(rows=msgspec.msgpack.encode(rows), count=len(rows), last_seq=last_seq, more=more)

    def history(self, message: SessionHistory) -> Rows:
        """Return a page of a session, over as many segments as it takes."""
        if message.after_seq is not None and message.before_seq is not None:
            raise InvalidParams("session.history refused: after_seq and before_seq exclude each other")
        limit = rows_limit(message.limit)
        if message.after_seq is not None:
            return self._history_after(message, message.after_seq, limit)
        return self._history_before(message, SEQ_MAX if message.before_seq is None else message.before_seq, limit)

    def _history_after(self, message: SessionHistory, after: int, limit: int) -> Rows:
        seen: list[int] = []
        self._wait(after + 1, SEQ_MAX)
        places = [place for place in self.places() if place.last > after]

        def rows_of(place: Place) -> Iterator[EventRow]:
            return self._shown(
                place,
                lambda each, seq: store.session_after(each, message.tenant, message.session_id, seq, limit + 1),
                start=after,
                rows_max=limit + 1,
            )

        events = islice(chain.from_iterable(map(rows_of, places)), limit + 1)
        found = page(map(self._client_row, _noted(events, seen)), limit)
        last = seen[found.count - 1] if found.more else SEQ_MAX
        return msgspec.structs.replace(found, degraded=self._missing(message, after + 1, last))

    def _history_before(self, message: SessionHistory, before: int, limit: int) -> Rows:
        seen: list[int] = []
        self._wait(0, before - 1)
        places = [place for place in reversed(self.places()) if place.first < before]

        def rows_of(place: Place) -> Iterator[EventRow]:
            return self._shown(
                place,
                lambda each, seq: store.session_before(each, message.tenant, message.session_id, seq, limit + 1),
                start=before,
                rows_max=limit + 1,
            )

        events = islice(chain.from_iterable(map(rows_of, places)), limit + 1)
        found = page(map(self._client_row, _noted(events, seen)), limit, reverse=True)
        first = seen[found.count - 1] if found.more else 0
        return msgspec.structs.replace(found, degraded=self._missing(message, first, before - 1))

    def _client_row(self, event: EventRow) -> bytes:
        return store.client_row(event, self._redactor)

    # ------------------------------------------------------------ what other actors ask for

    def page_events(self, message: PageEvents) -> EventPage:
        """Return a page for the builder; StoreBusy while a damaged segment is still being read in its range."""
        limit = rows_limit(message.limit)
        self._require_read(message.after + 1, message.until)
        places = [place for place in self.places() if place.last > message.after and place.first <= message.until]

        def rows_of(place: Place) -> Iterator[EventRow]:
            return self.rows(place, lambda each: store.events_between(each, message.after, message.until, limit))

        rows: list[msgspec.Raw] = []
        size, last_seq = 0, message.after
        for event in islice(chain.from_iterable(map(rows_of, places)), limit):
            if self.hidden.hides(event):
                last_seq = event.seq
                continue
            row = store.builder_row(event)
            if rows and size + len(row) > message.bytes_max:
                break
            rows.append(msgspec.Raw(row))
            size, last_seq = size + len(row), event.seq
        more = last_seq < min(message.until, self.last_seq()) if last_seq > message.after else False
        return EventPage(rows=msgspec.msgpack.encode(rows), count=len(rows), last_seq=last_seq, more=more)

    def export_events(self, message: ExportEvents) -> Exported:
        """Return a page of a tenant's events. One that holds none of them may still have more behind it."""
        limit = rows_limit(message.limit)
        until = self.last_seq()
        self._require_read(message.after + 1, until)
        places = [place for place in self.places() if place.last > message.after]

        def rows_of(place: Place) -> Iterator[EventRow]:
            return self.rows(place, lambda each: store.events_between(each, message.after, until, limit))

        rows: list[bytes] = []
        size, last = 0, message.after
        for event in islice(chain.from_iterable(map(rows_of, places)), limit):
            if event.tenant == message.tenant and not self.hidden.hides(event):
                row = self._client_row(event)
                if rows and size + len(row) > PAGE_BYTES_MAX:
                    break
                rows.append(row)
                size += len(row)
            last = event.seq
        more = message.after < last < until
        return Exported(rows=b"[" + b",".join(rows) + b"]", count=len(rows), last=last, more=more)

    def sessions_since(self, message: SessionsSince) -> SessionPage:
        """Return sessions by their last seq. One that goes on in a later segment comes again there, with the total."""
        limit = rows_limit(message.limit)
        found: list[SessionActivity] = []
        for place in self.places():
            connection = summary(place)
            if place.last <= message.cursor:
                continue
            if place.part is not None and place.part.position > max(place.first, message.cursor + 1):
                break  # its summary is made at the end, and what comes after it must not be reported before it
            if connection is not None:
                found += sessions.sessions_since(connection, message.cursor, limit + 1 - len(found))
            if len(found) > limit:
                break
        shown = [self._total(each) for each in found[:limit]]
        cursor = shown[-1].last_seq if shown else message.cursor
        return SessionPage(sessions=shown, cursor=cursor, more=len(found) > limit)

    def _total(self, activity: SessionActivity) -> SessionActivity:
        """Add what earlier segments know of a session."""
        for part in self._shelf.parts():
            if part.last >= activity.last_seq or part.database is None:
                continue
            with self._shelf.watched(part):
                earlier = sessions.find_session(part.database.connection, activity.tenant, activity.session_id)
            if earlier is not None:
                activity = msgspec.structs.replace(
                    activity,
                    first_ts=min(activity.first_ts, earlier.first_ts),
                    last_ts=max(activity.last_ts, earlier.last_ts),
                    events=activity.events + earlier.events,
                )
        return activity

    # ------------------------------------------------------------ counting

    def last_seq(self) -> int:
        """Return the last seq that was given out, as far as is known."""
        found = store.last_seq(self._active())
        return found or max((part.segment.last_seq or 0 for part in self._shelf.parts()), default=0)

    def count_between(self, after: int, until: int) -> int:
        """Return how many events have after < seq <= until: seqs are counted, as they have no gaps in a segment."""
        return sum(self._count(place, after, until) for place in self.places())

    def gaps(self) -> list[tuple[int, int]]:
        """Return the ranges (first, last) of seqs that were never given out, or whose events are lost."""
        ranges: list[tuple[int, int]] = []
        for part in self._shelf.parts():
            if part.segment.state in ("damaged", "archived"):
                ranges += part.holes
            elif part.segment.last_seq is not None and part.segment.last_seq < part.last:
                ranges.append((part.segment.last_seq + 1, part.last))
        return ranges

    def count_sessions(self) -> int:
        """Return how many sessions there are."""
        connections = [each for each in map(summary, self.places()) if each is not None]
        counts = tuple(map(sessions.count_sessions, connections))
        if len(counts) > 1 and counts != self._sessions_at:
            # A session may go on in a later segment; the names are compared only when their number has changed.
            names = set(chain.from_iterable(map(sessions.names, connections)))
            self._sessions_at, self._sessions = counts, len(names)
        return self._sessions if len(counts) > 1 else sum(counts)

    def _count(self, place: Place, after: int, until: int) -> int:
        first, last = max(place.first, after + 1), min(self._end(place), until)
        if last < first:
            return 0
        holes = place.part.holes if place.part is not None else ()
        return last - first + 1 - sum(max(0, min(b, last) - max(a, first) + 1) for a, b in holes)

    def _end(self, place: Place) -> int:
        """Return the last seq that a segment really reaches."""
        if place.part is None:
            return self.last_seq()
        if place.part.segment.state in ("sealed", "archived") and place.part.segment.last_seq is not None:
            return place.part.segment.last_seq
        return place.last

    # ------------------------------------------------------------ segments

    def places(self) -> list[Place]:
        """Return all segments, in order."""
        earlier = [
            Place(part.segment.number, part.first, part.last, _connection(part), part) for part in self._shelf.parts()
        ]
        active = self._shelf.active
        return [*earlier, Place(active.number, active.first_seq, SEQ_MAX, self._active(), None)]

    def rows(self, place: Place, query: Query) -> Iterator[EventRow]:
        """Yield rows of a segment that are sound. Raises StoreLost for one that does not."""
        if place.connection is None:
            return
        if place.part is None:
            yield from self._checked(place, query(place.connection))
            return
        with self._shelf.watched(place.part):
            if place.part.segment.state == "damaged":
                yield from query(place.connection)
            else:
                yield from self._checked(place, query(place.connection))

    def _shown(
        self,
        place: Place,
        query: Callable[[sqlite3.Connection, int], Iterable[EventRow]],
        *,
        start: int,
        rows_max: int,
    ) -> Iterator[EventRow]:
        """Yield rows that are not hidden, asking for the next ones as long as there may be any."""
        found = rows_max
        while found == rows_max:
            found = 0
            for event in self.rows(place, partial(_after, query, start)):
                found, start = found + 1, event.seq
                if not self.hidden.hides(event):
                    yield event

    def _checked(self, place: Place, rows: Iterable[EventRow]) -> Iterator[EventRow]:
        for event in rows:
            if not is_sound(event):
                raise self._damage(place, event)
            yield event

    def _damage(self, place: Place, event: EventRow) -> StoreLost:
        text = f"event {event.seq} is not what was written"
        self._book.suspect(Suspicion(number=place.number, reason=text, seq=event.seq))
        return StoreLost(
            StoreBroken(
                f"read refused: {text}", outcome="not_executed", hint="repeat it; the segment is looked at and sealed"
            )
        )

    def event_at(self, seq: int) -> EventRow | None:
        """Return the event with this seq, hidden or not; None when there is none or it can't be read."""
        for place in self.places():
            if place.first <= seq <= place.last:
                found = self.rows(place, lambda connection: _by_seq(connection, seq))
                return next(found, None)
        return None

    def is_lost(self, seq: int) -> bool:
        """Say whether a damaged segment may have had an event with this seq that can't be read."""
        return any(overlaps(part.holes, seq, seq) for part in self._shelf.parts())

    def is_read(self, first: int, last: int, *, seconds: float) -> bool:
        """Say whether what can be read of damaged segments in a range is in their copies; wait a moment for it."""
        give_up = time.monotonic() + seconds
        for part in self._shelf.parts():
            needed = max(part.first, first)
            if not overlaps([(part.first, part.last)], first, last) or part.position <= needed:
                continue
            progress = self._salvage.wait(part.segment, needed, give_up - time.monotonic())
            if not progress.complete and progress.position > needed:
                return False
        return True

    def _wait(self, first: int, last: int) -> None:
        """Give the copies a moment; what is still missing afterwards is said in the answer."""
        if self._shelf.parts():
            self.is_read(first, last, seconds=WAIT_S)

    def _require_read(self, first: int, last: int) -> None:
        if not self.is_read(first, last, seconds=WAIT_S):
            raise StoreBusy(
                "page refused: what is left of a damaged segment is still being read", retry_after_ms=_RETRY_AFTER_MS
            )

    # ------------------------------------------------------------ what may be missing

    def degraded(self, first: int, last: int) -> Degraded:
        """Return why events with a seq in this range may be missing."""
        damaged = (part for part in self._shelf.parts() if not part.is_archived)
        return tuple((DAMAGED, _describe(part)) for part in damaged if overlaps(part.holes, first, last))

    def _missing(self, message: SessionHistory, first: int, last: int) -> Degraded:
        """Return why events of a session may be missing in this range: also those that were archived."""
        archived = []
        for part in self._shelf.parts():
            if not part.is_archived or part.database is None or not overlaps(part.holes, first, last):
                continue
            with self._shelf.watched(part):
                known = sessions.find_session(part.database.connection, message.tenant, message.session_id)
            if known is not None:
                archived.append((ARCHIVED, f"{known.events} events of the session are archived, in {_archive(part)}"))
        return (*self.degraded(first, last), *archived)

    def _archive_with(self, message: GetEvent) -> str | None:
        """Return in which archive an event of a tenant is."""
        for part in self._shelf.parts():
            if part.is_archived and part.database is not None:
                with self._shelf.watched(part):
                    found = store.get_event(part.database.connection, message.tenant, message.event_id)
                if found is not None and not self.hidden.hides(found):
                    return _archive(part)
        return None

    def _hint(self) -> str | None:
        details = [detail for _, detail in self.degraded(0, SEQ_MAX)]
        return "; ".join(details) if details else None


def _describe(part: Part) -> str:
    why = part.segment.reason
    text = f"segment {part.name} is damaged ({why}); it may have held events {part.first} to {part.last}"
    if part.position > part.first:
        return f"{text}, and what is left of them is still being read"
    return f"{text}; those that could be read are served"


def _connection(part: Part) -> sqlite3.Connection | None:
    return None if part.database is None or part.is_archived else part.database.connection


def summary(place: Place) -> sqlite3.Connection | None:
    """Return where the sessions of a segment are told: of an archived one in the list of its events."""
    part = place.part
    return place.connection if part is None or part.database is None else part.database.connection


def _archive(part: Part) -> str:
    return "an archive" if part.segment.archive is None else part.segment.archive.name


def _one(connection: sqlite3.Connection, message: GetEvent) -> list[EventRow]:
    event = store.get_event(connection, message.tenant, message.event_id)
    return [] if event is None else [event]


def _after(
    query: Callable[[sqlite3.Connection, int], Iterable[EventRow]], start: int, connection: sqlite3.Connection
) -> Iterable[EventRow]:
    return query(connection, start)


def _by_seq(connection: sqlite3.Connection, seq: int) -> list[EventRow]:
    event = store.event_at(connection, seq)
    return [] if event is None else [event]


def _noted(events: Iterable[EventRow], seen: list[int]) -> Iterator[EventRow]:
    for event in events:
        seen.append(event.seq)
        yield event
