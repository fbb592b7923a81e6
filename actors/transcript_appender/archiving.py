"""What stays of a segment when an archive takes its place: a list of its events without what they say.

    archived/00000003.db   ids, times, sessions and requests of the events of 00000003.db; their content is empty

The list has the tables of a segment, so an event that is sent again is recognised as before, and a session counts what
it had. It is made beside the segment, in short transactions of its own file, and counts once the catalogue says
`archived`; a kill before that leaves a file that the next attempt makes anew, a kill after it a segment that the next
start deletes. The archive itself (a Parquet file) is not looked at here: who wrote it has read it back.
"""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from actors.errors import Conflict, NotFound, StoreBusy
from actors.messages.archives import ArchiveFile, FindArchived, RetireSegment, SegmentInfo
from actors.sql import meta
from actors.sql.database import (
    Call,
    Database,
    FileKind,
    checkpoint,
    file_bytes,
    fsync_directory,
    open_reader,
    open_writer,
    prepare_directory,
    remove_database,
    transaction,
)
from actors.sql.rows import encode_row, raw_json, rfc3339
from actors.transcript_appender import store
from actors.transcript_appender.catalogue import ARCHIVED, Book, Segment
from actors.transcript_appender.store import EventRow

ARCHIVE = "archive"  # in `meta` of the list: what the catalogue says of the archive, should that be lost
_ROWS = 500


def retire(book: Book, kind: FileKind, message: RetireSegment, call: Call, now_us: int) -> None:
    """Put the list of its events in the place of a segment. Raises NotFound, Conflict, and what the disk has to say."""
    segment = _sealed_segment(book, message)
    if segment is None:
        return
    source, target = book.path_of(segment), book.folder / ARCHIVED / segment.name
    prepare_directory(target.parent)
    remove_database(target)
    _make_list(source, target, kind, message.archive, call)
    if not book.is_current():
        raise StoreBusy("archiving refused: another process has changed the catalogue of the transcript")
    archived = msgspec.structs.replace(segment, state="archived", archive=message.archive, at=now_us, reason=None)
    book.change(lambda now: now.with_segment(archived))
    remove_segment(book, archived)


def remove_segment(book: Book, archived: Segment) -> None:
    """Delete the files of a segment that is archived."""
    remove_database(book.folder / archived.name)
    fsync_directory(book.folder)


def archive_of(folder: Path, name: str, kind: FileKind) -> ArchiveFile | None:
    """Return which archive the list of a segment speaks of; None when there is no list that can be read."""
    path = folder / ARCHIVED / name
    if file_bytes(path) == 0:
        return None
    try:
        connection = open_reader(path, kind, lenient=True)
        try:
            return msgspec.json.decode(meta.read_text(connection, ARCHIVE) or "", type=ArchiveFile)
        finally:
            connection.close()
    except (sqlite3.Error, msgspec.DecodeError):
        return None


def info(book: Book, segment: Segment, last_seq: int | None) -> SegmentInfo:
    """Return what is told of a segment."""
    return SegmentInfo(
        number=segment.number,
        state=segment.state,
        first_seq=segment.first_seq,
        last_seq=segment.last_seq if segment.state != "active" else last_seq,
        at=segment.at,
        bytes=file_bytes(book.path_of(segment)),
        archive=segment.archive,
    )


def find(connection: sqlite3.Connection, message: FindArchived) -> Iterator[EventRow]:
    """Yield events of one list, ascending by seq."""
    conditions, parameters = ["tenant = :tenant", "seq > :after_seq"], dict[str, str | int]()
    wanted: tuple[tuple[str, str, str | int | None], ...] = (
        ("session_id", "session_id = :session_id", message.session_id),
        ("event_id", "event_id = :event_id", message.event_id),
        ("kind", "kind = :kind", message.kind),
        ("actor", "actor = :actor", message.actor),
        ("since", "ts >= :since", message.since),
        ("until", "ts < :until", message.until),
    )
    for name, condition, value in wanted:
        if value is not None:
            conditions.append(condition)
            parameters[name] = value
    rows = connection.execute(
        f"SELECT {store.COLUMNS} FROM events WHERE {' AND '.join(conditions)} ORDER BY seq",
        {"tenant": message.tenant, "after_seq": message.after_seq, **parameters},
    )
    return (EventRow(*row) for row in rows)


def archived_row(event: EventRow, archive: ArchiveFile | None) -> bytes:
    """Return an archived event as JSON for clients: where it is, and everything but what it says."""
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
            "content_hash": event.content_hash.hex(),
            "tags": raw_json(event.tags),
            "trace_id": event.trace_id,
            "request_id": event.request_id,
            "scope": event.scope,
            "archive": None if archive is None else archive.name,
        }
    )


def _sealed_segment(book: Book, message: RetireSegment) -> Segment | None:
    """Return the segment that is to go; None when that has happened."""
    segment = next((each for each in book.catalogue.segments if each.number == message.number), None)
    if segment is None:
        raise NotFound(f"archiving refused: there is no segment {message.number}")
    if segment.archive == message.archive:
        return None
    archive = message.archive
    if segment.state != "sealed":
        raise Conflict(f"archiving refused: segment {segment.name} is {segment.state}, only a sealed one is archived")
    if (archive.first_seq, archive.last_seq) != (segment.first_seq, segment.last_seq):
        raise Conflict(
            f"archiving refused: {archive.name} holds events {archive.first_seq} to {archive.last_seq}, "
            f"segment {segment.name} those from {segment.first_seq} to {segment.last_seq}"
        )
    return segment


def _make_list(source: Path, target: Path, kind: FileKind, archive: ArchiveFile, call: Call) -> None:
    reader = Database(open_reader(source, kind), source)
    writer = Database(open_writer(target, kind), target)
    try:
        with reader.during(call, "archiving failed") as read, writer.during(call, "archiving failed") as written:
            # Worthless until it is complete, and made durable at the end.
            written.execute("PRAGMA synchronous = OFF")
            count = _copy(read, written, call)
            if count != archive.rows:
                raise Conflict(f"archiving refused: {archive.name} holds {archive.rows} events, {source.name} {count}")
            with transaction(written, call):
                for name in (store.FIRST_SEQ, store.CLOCK):
                    meta.write(written, name, meta.read_counter(read, name))
                if (identity := meta.read_text(read, "identity")) is not None:
                    meta.write(written, "identity", identity)
                meta.write(written, ARCHIVE, msgspec.json.encode(archive).decode())
            written.execute("PRAGMA synchronous = FULL")
            checkpoint(written, "TRUNCATE")
    finally:
        writer.close()
        reader.close()
    fsync_directory(target.parent)


def _copy(read: sqlite3.Connection, written: sqlite3.Connection, call: Call) -> int:
    """Copy the rows without what the events say, some at a time; return how many events there are."""
    events = read.execute(f"SELECT {store.COLUMNS} FROM events ORDER BY seq")
    count = _in_batches(events, written, call, lambda row: _insert_bare(written, EventRow(*row)))
    for table, columns in (
        ("requests", "tenant, request_id, seq"),
        ("sessions", "tenant, session_id, first_ts, last_ts, first_seq, last_seq, events"),
        ("recent", "key, seq, ts, seen"),
    ):
        marks = ", ".join("?" * len(columns.split(", ")))
        insert = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
        rows = read.execute(f"SELECT {columns} FROM {table}")
        _in_batches(rows, written, call, lambda row, insert=insert: written.execute(insert, row))  # type: ignore[misc]
    return count


def _in_batches(
    rows: sqlite3.Cursor, written: sqlite3.Connection, call: Call, add: Callable[[tuple[Any, ...]], object]
) -> int:
    count = 0
    while batch := rows.fetchmany(_ROWS):
        call.check()
        with transaction(written, call):
            for row in batch:
                add(row)
        count += len(batch)
    return count


def _insert_bare(written: sqlite3.Connection, event: EventRow) -> None:
    names = ", ".join(f":{name}" for name in EventRow._fields)
    bare = event._replace(content="", meta=None)
    written.execute(f"INSERT INTO events ({store.COLUMNS}) VALUES ({names})", bare._asdict())
