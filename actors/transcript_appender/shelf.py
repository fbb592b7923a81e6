"""The segments before the active one, as one lane of the worker reads them: opened once, looked through in order.

A shelf belongs to one thread. It follows the catalogue and the copies of damaged segments: whenever one of them has
changed, its files are opened anew. During a call it keeps to the catalogue of the beginning of the call: the segment
that was the active one then may be sealed meanwhile, and is to be read once and not twice. With one segment it is empty
and costs nothing.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple, Protocol

from actors.child import StoreLost
from actors.errors import BulkheadError, Quarantined, StoreBroken
from actors.sql.database import Call, Database, FileKind, open_reader
from actors.transcript_appender import store
from actors.transcript_appender.catalogue import Book, Segment, Suspicion
from actors.transcript_appender.examine import UNREADABLE, is_damage, suspicion_of
from actors.transcript_appender.salvage import Salvage, copy_kind
from actors.transcript_appender.sessions import find_session
from actors.transcript_appender.store import Place
from actors.transcript_appender.views import View


class Part(NamedTuple):
    """An earlier segment: the seqs that it may hold (first to last), its file or readable copy (None: nothing can be
    read of it yet), and the ranges in which events may be missing.

    `position`: what lies above is in the copy. `opened` tells one opening of the files from the next.
    """

    segment: Segment
    first: int
    last: int
    database: Database | None
    holes: tuple[tuple[int, int], ...]
    position: int
    opened: int

    @property
    def name(self) -> str:
        """Return the name of the segment."""
        return self.segment.name

    @property
    def is_archived(self) -> bool:
        """Say whether its file is a list of events without what they say."""
        return self.segment.state == "archived"


class Shelf:
    """The earlier segments of one lane. `raw`: look for duplicates in damaged files that have no complete copy."""

    def __init__(self, book: Book, salvage: Salvage, kind: FileKind, *, raw: bool = False) -> None:
        self._book = book
        self._salvage = salvage
        self._kind = kind
        self._raw = raw
        self._seen: tuple[tuple[Segment, ...], int] = ((), -1)
        self._opened = 0
        self._catalogue = book.catalogue  # as it was when the files were opened, or the call began
        self._kept = 0  # calls that go on with this catalogue
        self._databases: dict[int, Database] = {}
        self._views: dict[int, View] = {}

    @property
    def active(self) -> Segment:
        """Return the segment that is appended to."""
        return (self._catalogue if self._kept else self._book.catalogue).active

    def parts(self) -> list[Part]:
        """Return the earlier segments, in order."""
        if self.active.number == 1:
            return []
        self._refresh()
        return [self._part(segment) for segment in self._catalogue.segments[:-1]]

    @contextmanager
    def during(self, call: Call, attempted: str) -> Iterator[None]:
        """Let the statements on every part stop at the end of a call, and their errors become operating errors."""
        with self._keeping(), ExitStack() as stack:
            for part in self.parts():
                if part.database is not None:
                    stack.enter_context(part.database.during(call, attempted))
            yield

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Go on with one catalogue."""
        if not self._kept:
            self._catalogue = self._book.catalogue
        self._kept += 1
        try:
            yield
        finally:
            self._kept -= 1

    def close(self) -> None:
        """Close the files."""
        for database in self._databases.values():
            database.close()
        for view in self._views.values():
            view.close()
        self._databases, self._views = {}, {}

    @contextmanager
    def watched(self, part: Part) -> Iterator[None]:
        """Leave word for the next process when the file of a part turns out to be damaged in the body."""
        try:
            yield
        except UNREADABLE as error:
            if is_damage(error):
                self._book.suspect(suspicion_of(part.segment.number, error))
            raise

    # ------------------------------------------------------------ duplicates

    def place_by_event_id(self, event_id: str) -> Place | None:
        """Return where the event with this id stands in an earlier segment, in whichever tenant."""
        return self._first(lambda place: place.place_by_event_id(event_id))

    def place_by_request(self, tenant: str, request_id: str) -> Place | None:
        """Return which event of an earlier segment a request of this tenant led to."""
        return self._first(lambda place: place.place_by_request(tenant, request_id))

    def place_at(self, seq: int) -> Place | None:
        """Return the event of an earlier segment with this seq."""
        return self._first(lambda place: place.place_at(seq))

    def recent_place(self, key: bytes, ts: int, window_us: int) -> Place | None:
        """Return the event of an earlier segment with this key whose time is within the window around `ts`."""
        return self._first(lambda place: place.recent_place(key, ts, window_us))

    def has_session(self, tenant: str, session_id: str) -> bool:
        """Say whether a session has events in an earlier segment, as far as their summaries can be read."""
        return any(
            part.database is not None and find_session(part.database.connection, tenant, session_id) is not None
            for part in self.parts()
        )

    def _first(self, look: Callable[["_Places"], Place | None]) -> Place | None:
        for part in reversed(self.parts()):
            with self.watched(part):
                for places in self._places(part):
                    if (found := look(places)) is not None:
                        return found
        return None

    def _places(self, part: Part) -> Iterator["_Places"]:
        """Yield where to look in a part: its copy, and until that is complete the damaged file itself."""
        if part.database is not None:
            yield _WholeFile(part.database.connection)
        view = self._views.get(part.segment.number)
        if view is not None:
            yield view

    # ------------------------------------------------------------ files

    def _refresh(self) -> None:
        if not self._kept:
            self._catalogue = self._book.catalogue
        segments = self._catalogue.segments
        # The revision is read first: a copy that is changed meanwhile makes the next call look again.
        seen = (segments, self._salvage.revision)
        if seen == self._seen:
            return
        self.close()
        for segment in segments[:-1]:
            self._open(segment)
        self._seen = (self._catalogue.segments, seen[1])
        self._opened += 1

    def _open(self, segment: Segment) -> None:
        if segment.state == "archived":
            with suppress(BulkheadError):  # without its list a repetition of its events is not recognised
                path = self._book.path_of(segment)
                self._databases[segment.number] = Database(open_reader(path, self._kind), path)
            return
        if segment.state == "sealed":
            self._open_sealed_or_archived(segment)
            return
        progress = self._salvage.progress(segment)
        if progress.path is not None:
            with suppress(BulkheadError):  # being made anew; the revision changes when it is there
                reader = open_reader(progress.path, copy_kind(self._kind))
                self._databases[segment.number] = Database(reader, progress.path)
        if self._raw and not progress.complete and self._book.path_of(segment).exists():
            self._views[segment.number] = View(self._book.path_of(segment), with_wal=True)

    def _open_sealed_or_archived(self, segment: Segment) -> None:
        """Open a sealed segment. One that was archived since the call began is gone, and its list is opened instead:
        nothing of it has been read yet, so the call sees none of its events, and not some."""
        try:
            self._databases[segment.number] = self._open_sealed(segment)
        except BulkheadError:
            now = self._book.catalogue.segments[segment.number - 1]
            if now.state != "archived":
                raise
            self._catalogue = self._catalogue.with_segment(now)
            self._open(now)

    def _open_sealed(self, segment: Segment) -> Database:
        path = self._book.path_of(segment)
        try:
            return Database(open_reader(path, self._kind), path)
        except Quarantined as error:
            self._book.suspect(Suspicion(number=segment.number, reason=error.message))
            raise StoreLost(StoreBroken(error.message, outcome="not_executed")) from error

    def _part(self, segment: Segment) -> Part:
        first, last = segment.first_seq, self._catalogue.until(segment)
        holes: tuple[tuple[int, int], ...] = ()
        position = first
        if segment.state == "damaged":
            progress = self._salvage.progress(segment)
            # What is above the position has been tried, but where it has gaps is only known at the end.
            holes = progress.holes if progress.complete else ((first, last),)
            position = first if progress.complete else progress.position
        elif segment.state == "archived":
            holes = ((first, last),)
        return Part(
            segment=segment,
            first=first,
            last=last,
            database=self._databases.get(segment.number),
            holes=holes,
            position=position,
            opened=self._opened,
        )


class _Places(Protocol):
    """Where duplicates are looked for."""

    def place_by_event_id(self, event_id: str) -> Place | None: ...

    def place_by_request(self, tenant: str, request_id: str) -> Place | None: ...

    def place_at(self, seq: int) -> Place | None: ...

    def recent_place(self, key: bytes, ts: int, window_us: int) -> Place | None: ...


class _WholeFile:
    """A segment or readable copy that is whole."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def place_by_event_id(self, event_id: str) -> Place | None:
        return store.place_by_event_id(self._connection, event_id)

    def place_by_request(self, tenant: str, request_id: str) -> Place | None:
        return store.place_by_request(self._connection, tenant, request_id)

    def place_at(self, seq: int) -> Place | None:
        return store.place_at(self._connection, seq)

    def recent_place(self, key: bytes, ts: int, window_us: int) -> Place | None:
        return store.recent_place(self._connection, key, ts, window_us)


def overlaps(ranges: Iterable[tuple[int, int]], first: int, last: int) -> bool:
    """Say whether any of the ranges (first, last) has a seq in common with another one."""
    return any(one <= last and first <= other for one, other in ranges)
