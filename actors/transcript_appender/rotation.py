"""When the active segment is full, and how the next one takes its place. The process goes on, and so do its readers.

    1. under the write lock of the full segment, which only its writer gets:
    2. the file of the next one is made, complete and durable, beginning right behind the last event
    3. we become its writer
    4. the catalogue names it as the active one, and the full one as sealed: from here on it has happened

A kill before 4 leaves a file that the catalogue does not name, which is made anew by the next attempt. A process that
was replaced without knowing it is refused the lock (writer_epoch.py), and one that opens the transcript at the same
time looks at the catalogue again once it is the writer.

What the WAL of a sealed segment still holds is copied into its file later, when nobody waits.
"""

import time
from collections.abc import Callable

import msgspec

from actors.child import StoreLost
from actors.errors import Interrupted
from actors.sql.database import Call, Database, FileKind, map_os_error, open_writer, transaction, wal_bytes
from actors.transcript_appender import store
from actors.transcript_appender.catalogue import Book, Catalogue, Segment
from actors.transcript_appender.segments import create_segment


def is_due(segment: Segment, *, size: int, bytes_max: int, now_us: int) -> bool:
    """Say whether a segment is full: as large as it may get, or of an earlier month (UTC) than now.

    The clock may go back: then the month is earlier than the segment's, which says nothing. A segment that does not
    know since when it is written to goes by its size alone.
    """
    return size >= bytes_max or (segment.at > 0 and _month(segment.at) < _month(now_us))


def begin_next(
    book: Book,
    kind: FileKind,
    full: Database,
    call: Call,
    *,
    clock: int,
    now_us: int,
    take_over: Callable[[Database], None],
) -> Database | None:
    """Seal the active segment and return the writer of the next one. One that holds no event yet is of this month
    instead: None.

    `clock` is the last time that an event got, µs; `take_over` makes us the writer of a file. Raises what the disk has
    to say, with nothing changed that counts; StoreLost when it is not known whether the catalogue has changed.
    """
    made: Database | None = None
    try:
        with transaction(full.connection, call):
            last_seq, active = store.last_seq(full.connection), book.catalogue.active
            if last_seq < active.first_seq:
                book.change(lambda now: now.with_segment(msgspec.structs.replace(active, at=max(now_us, active.at))))
            else:
                following = Segment(
                    number=active.number + 1,
                    state="active",
                    first_seq=last_seq + 1,
                    at=max(now_us, clock),
                    schema=kind.user_version,
                )
                made = _make(book, kind, following, clock, take_over)
    except Interrupted:
        if made is None:  # else the deadline came after it had happened
            raise
    return made


def _make(
    book: Book, kind: FileKind, following: Segment, clock: int, take_over: Callable[[Database], None]
) -> Database:
    identity, path = book.catalogue.identity, book.path_of(following)
    create_segment(book.folder, kind, following.number, identity=identity, first_seq=following.first_seq, clock=clock)
    book.raise_floor(following.first_seq - 1, clock)
    fresh = Database(open_writer(path, kind, checked=True), path)
    try:
        take_over(fresh)
        _name(book, following)
    except BaseException:
        fresh.close()
        raise
    return fresh


def _name(book: Book, following: Segment) -> None:
    """Change the catalogue. When that fails it may have changed all the same: only a new process knows."""
    try:
        book.change(lambda now: _sealed(now, following))
    except OSError as error:
        raise StoreLost(map_os_error(error, f"naming segment {following.name} failed")) from error


def unsettled(book: Book) -> Segment | None:
    """Return a sealed segment of which something is in its WAL alone, None when there is none."""
    sealed = (each for each in book.catalogue.segments if each.state == "sealed")
    return next((each for each in sealed if wal_bytes(book.path_of(each))), None)


def settle(book: Book, kind: FileKind, segment: Segment) -> bool:
    """Copy the WAL of a sealed segment into its file; return whether all of it is there. Nobody writes to it."""
    connection = open_writer(book.path_of(segment), kind, checked=True)
    try:
        busy, log, copied = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(busy == 0 and log == copied)
    finally:
        connection.close()


def _sealed(catalogue: Catalogue, following: Segment) -> Catalogue:
    full = msgspec.structs.replace(catalogue.active, state="sealed", last_seq=following.first_seq - 1, at=following.at)
    changed = catalogue.with_segment(full)
    return msgspec.structs.replace(changed, segments=(*changed.segments, following))


def _month(at_us: int) -> tuple[int, int]:
    then = time.gmtime(at_us / 1e6)
    return then.tm_year, then.tm_mon
