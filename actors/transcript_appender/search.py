"""Keyword search in the transcript: which rows the index gets, and what becomes of its hits."""

import sqlite3
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

import msgspec

from actors.child import StoreLost
from actors.errors import StoreBroken
from actors.messages.base import Candidate, Candidates
from actors.messages.transcript_appender import SearchEvents
from actors.redaction import Redactor, recall_text
from actors.sql import keywords, meta
from actors.sql.database import QUICK_CHECK_BYTES_MAX, Until, attach_reader, file_bytes
from actors.sql.filters import where
from actors.sql.keywords import Document, Hit, KeywordIndex, Question, Slice, Weight
from actors.sql.rows import rows_limit
from actors.terms import event_terms
from actors.text import ANALYSER_VERSION, analyse_query, snippet
from actors.transcript_appender import store
from actors.transcript_appender.catalogue import SEQ_MAX, Book, Suspicion
from actors.transcript_appender.reading import Place, Reading
from actors.transcript_appender.store import EventRow

_SLICE_CHARS_MAX = 256 * 1024
_WAIT_S = 0.25
# SQLite attaches ten at most; one place is the active segment's.
_ATTACHED_MAX = 8
_ACTIVE = "truth"


def _schema(number: int) -> str:
    return f"segment_{number}"


def _rows_of(schema: str) -> str:
    return f"{schema}.events AS t ON t.seq = h.rowid"


class EventSource:
    """What the keyword index follows: the events of all segments, by seq."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def latest(self) -> int:
        """Return the last seq."""
        return self._reading.last_seq()

    def slice(self, after: int, rows_max: int) -> Slice | None:
        """Return the terms of the next events, at most `rows_max` and about 256 Ki characters of content.

        None as well while a damaged segment in front of them is still being read: the cursor must not pass it by.
        """
        if not self._reading.is_read(after + 1, SEQ_MAX, seconds=_WAIT_S):
            return None
        places = [place for place in self._reading.places() if place.last > after]
        events = chain.from_iterable(
            self._reading.rows(place, lambda each: store.events_between(each, after, SEQ_MAX, rows_max))
            for place in places
        )
        documents: list[Document] = []
        size, mark = 0, ""
        cursor = after
        for event in islice(events, rows_max):
            cursor, mark = event.seq, event.event_id
            if self._reading.hidden.hides(event):
                continue
            documents.append(document_of(event))
            size += len(event.content)
            if size >= _SLICE_CHARS_MAX:
                break
        return None if cursor == after else Slice(added=documents, removed=[], cursor=cursor, mark=mark)

    def mark(self, rowid: int) -> str | None:
        """Return the id of the event with this seq."""
        event = self._reading.event_at(rowid)
        return None if event is None else event.event_id


class SegmentedIndex(KeywordIndex):
    """The keyword index of the transcript, whose rows lie in several files."""

    def __init__(self, folder: Path, active: Path, reading: Reading, book: Book) -> None:
        super().__init__(folder / keywords.FILE_NAME, active, EventSource(reading))
        self._reading = reading
        self._book = book
        self._attached: dict[tuple[int, int], Path] = {}  # (number, opening) → file

    def attach(self, connection: sqlite3.Connection) -> None:
        """Give a new connection the active segment; the others follow when a question reaches them."""
        self._attached = {}
        super().attach(connection)

    def follow(self, active: Path) -> None:
        """Read from another active segment from now on. Called between two calls of the lane."""
        self._truth = active
        if self._database is None:
            return
        try:
            self._database.connection.execute(f"DETACH DATABASE {_ACTIVE}")
            attach_reader(self._database.connection, active, _ACTIVE)
        except sqlite3.Error:
            self.close()  # the next call opens it anew

    def hits(self, connection: sqlite3.Connection, weights: Sequence[Weight], question: Question) -> list[Hit]:
        """Return the best rows of all segments: the scores are of the whole index, so they can be compared."""
        found: list[Hit] = []
        for place in self._reading.places():
            if place.connection is None or place.last <= question.newer_than:
                continue
            schema = self._schema_of(connection, place)
            if schema is None:
                continue
            asked = question._replace(
                rows=_rows_of(schema),
                newer_than=max(question.newer_than, place.first - 1),
                until=place.last,
            )
            found += super().hits(connection, weights, asked)
        found.sort(key=lambda hit: (hit.score, hit.rowid), reverse=True)
        return found[: question.limit]

    def _schema_of(self, connection: sqlite3.Connection, place: Place) -> str | None:
        """Return the name under which a segment is attached to the index; the longest attached one makes room.

        None when its file is gone.
        """
        if place.part is None or place.part.database is None:
            return _ACTIVE
        # A copy that was made anew is another file under the same name; the shelf has opened it anew then.
        key = (place.number, place.part.opened)
        if key not in self._attached:
            for stale in [each for each in self._attached if each[1] != place.part.opened]:
                self._detach(connection, stale)
            while len(self._attached) >= _ATTACHED_MAX:
                self._detach(connection, next(iter(self._attached)))
            try:
                attach_reader(connection, place.part.database.path, _schema(place.number))
            except sqlite3.OperationalError:
                if place.part.database.path.exists():
                    raise
                return None  # archived since the call began
            self._attached[key] = place.part.database.path
        return _schema(place.number)

    def _detach(self, connection: sqlite3.Connection, key: tuple[int, int]) -> None:
        connection.execute(f"DETACH DATABASE {_schema(key[0])}")
        del self._attached[key]

    # ------------------------------------------------------------ the file

    def _fits(self, connection: sqlite3.Connection) -> bool:
        """Say whether the index was made from this truth. Where the event at its cursor was lost, nothing speaks
        against it: its hits are only answered with events that are there."""
        if super()._fits(connection):
            return True
        of_this_analyser = meta.read_text(connection, "analyser") == str(ANALYSER_VERSION)
        return of_this_analyser and self._reading.is_lost(meta.read_counter(connection, "cursor"))

    def _remove(self) -> bool:
        self._book.raise_floor(self.cursor)
        return super()._remove()

    def _drop_damaged(self) -> None:
        """Make the index anew, unless it is the truth that is damaged: then the process leaves.

        The cursor is kept in the catalogue before it is lost: it says up to where there must be events.
        """
        self._book.raise_floor(self.cursor)
        damaged = None if self._database is None else self._find_damaged(self._database.connection)
        if damaged is not None:
            self._book.suspect(damaged)
            raise StoreLost(StoreBroken(f"keyword search failed: {damaged.reason}", outcome="not_executed"))
        super()._drop_damaged()

    def _find_damaged(self, connection: sqlite3.Connection) -> Suspicion | None:
        """Return which of the attached segments is damaged, as far as a quick look tells."""
        active = (int(self._truth.stem), self._truth, _ACTIVE)
        earlier = ((number, path, _schema(number)) for (number, _), path in self._attached.items())
        for number, path, schema in (active, *earlier):
            if file_bytes(path) >= QUICK_CHECK_BYTES_MAX:
                continue
            try:
                (finding,) = connection.execute(f"PRAGMA {schema}.quick_check(1)").fetchone()
            except sqlite3.Error as error:
                finding = str(error)
            if finding != "ok":
                return Suspicion(number=number, reason=f"segment {path.name}: {finding}")
        return None


def document_of(event: EventRow) -> Document:
    """Return an event as the index gets it."""
    return Document(event.seq, " ".join(event_terms(event.content, event.ts)))


def search_events(
    reading: Reading,
    index: KeywordIndex,
    message: SearchEvents,
    *,
    until: Until,
    slice_rows: int,
    snippet_chars_max: int,
    redactor: Redactor,
) -> Candidates:
    """Answer a search; what the index can't reach in time is counted as behind."""
    condition = where(message.filters, message.tenant, "events")
    terms = analyse_query(message.query)
    latest = reading.last_seq()
    found: list[Candidate | None] = []
    behind = 0
    if condition is not None and terms and latest > message.newer_than:
        question = Question(terms, message.newer_than, _rows_of(_ACTIVE), condition, rows_limit(message.limit))
        hits, missing = index.search(question, until=until, rows_per_slice=slice_rows)
        found = [_candidate(reading, hit, terms, snippet_chars_max, redactor) for hit in hits]
        behind = reading.count_between(latest - missing, latest) if missing else 0
    return Candidates(
        found=[candidate for candidate in found if candidate is not None],
        latest=latest,
        behind=behind,
        newer=reading.count_between(message.newer_than, latest),
        # A generation that was built after the damage lacks the same events, so this holds whatever the bound is.
        degraded=reading.degraded(0, SEQ_MAX),
    )


def _candidate(
    reading: Reading, hit: Hit, terms: Sequence[str], snippet_chars_max: int, redactor: Redactor
) -> Candidate | None:
    event = reading.event_at(hit.rowid)
    if event is None or reading.hidden.hides(event):
        return None
    return Candidate(
        id=event.event_id,
        corpus="events",
        text_score=hit.score,
        snippet=recall_text(redactor, snippet(event.content, terms, snippet_chars_max), shown=True),
        ts=event.ts,
        seq=event.seq,
        session_id=event.session_id,
        actor=event.actor,
        kind=event.kind,
        scope=event.scope,
        tags=msgspec.json.decode(event.tags, type=tuple[str, ...]),
    )
