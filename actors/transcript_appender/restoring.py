"""Putting a good copy of a damaged segment back in its place, by command, while everything else goes on.

The copy that is given is only read: it is copied into the room, opened there, and looked at completely, every event's
hash included. It must be the same segment (this data directory, the same first seq) and end before the next one begins.
A backup is older than the damage; events that follow its last one without a gap in what could still be read of the
damaged file are added to it.
Then the files are exchanged (`actors/sql/swap.py`), and the damaged ones kept under `damaged-<UTC stamp>/`. SIGKILL at
any step leaves the old segment or the new one, and the catalogue names which: the next start completes the exchange.
"""

import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from actors.child import CallContext, StoreLost
from actors.errors import Conflict, InvalidParams, Quarantined
from actors.messages.base import Row
from actors.messages.core_writer import RestoreTruth
from actors.sql import meta, swap
from actors.sql.database import (
    Database,
    FileKind,
    checkpoint,
    file_bytes,
    fsync_directory,
    map_os_error,
    open_reader,
    open_writer,
    transaction,
    wal_of,
)
from actors.transcript_appender import sessions, store
from actors.transcript_appender.catalogue import SEQ_MAX, Book, Segment
from actors.transcript_appender.examine import Identified, identify
from actors.transcript_appender.salvage import Salvage, copy_kind
from actors.transcript_appender.store import EventRow

_PIECE_BYTES = 8 * 1024 * 1024
_PROBLEM = "restore refused"


def restore(book: Book, salvage: Salvage, message: RestoreTruth, call: CallContext) -> Row:
    """Put the segment at `message.path` in the place of the damaged one that it is a copy of. Durable on return.

    Raises InvalidParams or Quarantined for a file that is not fit, Conflict when that segment is not damaged.
    """
    if message.path is None:
        raise InvalidParams(
            f"{_PROBLEM}: there is nothing to salvage, what can be read of a damaged segment is served already",
            hint="give the file of a backup",
        )
    started = time.monotonic()
    name = swap.stamp()
    work = book.folder / f"{swap.WORK_PREFIX}{name}"
    try:
        work.mkdir(mode=0o700)
        segment, said = _make(book, salvage, Path(message.path), work, call)
        kept = f"{swap.DAMAGED_PREFIX}{name}"
        book.change(lambda now: now.with_segment(msgspec.structs.replace(segment, kept=kept)))
        intention = swap.Intention(database=segment.name, new=work.name, damaged=kept)
        swap.begin(book.folder, intention)
    except OSError as error:
        raise map_os_error(error, "restore failed") from error
    finally:
        if not (book.folder / swap.INTENTION).exists():
            shutil.rmtree(work, ignore_errors=True)
    lost = _count_after(salvage.progress(segment).path, salvage.kind, said.last_seq)
    sealed = Segment(
        number=segment.number,
        state="sealed",
        first_seq=said.first_seq,
        last_seq=said.last_seq,
        reason="restored",
        at=time.time_ns() // 1000,
        schema=salvage.kind.user_version,
    )
    book.change(lambda now: now.with_segment(sealed))
    salvage.forget(segment)
    report = {
        "restored_from": message.path,
        "salvaged": False,
        "segment": sealed.name,
        "first_seq": said.first_seq,
        "last_seq": said.last_seq,
        "tables": {"events": {"kept": said.last_seq - said.first_seq + 1, "lost": lost}},
        "kept_aside": kept,
        "took_ms": round((time.monotonic() - started) * 1000),
    }
    return Row(row=msgspec.json.encode(report))


# ---------------------------------------------------------------- the new file


def _make(book: Book, salvage: Salvage, source: Path, work: Path, call: CallContext) -> tuple[Segment, Identified]:
    """Make the new file under `work`, under the name that it will have; return which segment it is."""
    kind = salvage.kind
    if not source.is_file():
        raise InvalidParams(f"{_PROBLEM}: {str(source)!r} is no file")
    draft = work / "draft.db"
    _copy(source, draft, call)
    if wal_of(source).exists() and file_bytes(wal_of(source)):
        _copy(wal_of(source), wal_of(draft), call)
    said = identify(draft, kind)
    segment = _which(book, said)
    _require_fit(book, segment, said)
    _require_sound(draft, kind, call)
    last_seq = _finish(draft, kind, salvage.progress(segment).path, said.last_seq, call)
    draft.replace(work / segment.name)
    fsync_directory(work)
    return segment, said._replace(last_seq=last_seq)


def _copy(source: Path, target: Path, call: CallContext) -> None:
    with source.open("rb") as reading, target.open("xb") as writing:
        while piece := reading.read(_PIECE_BYTES):
            call.check()
            writing.write(piece)


def _which(book: Book, said: Identified) -> Segment:
    identity = book.catalogue.identity
    if identity and said.identity != identity:
        raise InvalidParams(f"{_PROBLEM}: the file is of data directory {said.identity!r}, this is {identity!r}")
    for segment in book.catalogue.segments:
        if segment.first_seq == said.first_seq:
            if segment.state == "damaged":
                return segment
            raise Conflict(f"{_PROBLEM}: segment {segment.name}, which the file is a copy of, is {segment.state}")
    firsts = [segment.first_seq for segment in book.catalogue.damaged()]
    raise InvalidParams(f"{_PROBLEM}: the file begins at event {said.first_seq}, damaged segments at {firsts}")


def _require_fit(book: Book, segment: Segment, said: Identified) -> None:
    """Refuse what reaches into the next segment. One that ends early is taken: a backup is older than the damage."""
    until = book.catalogue.until(segment)
    if said.last_seq > until:
        raise InvalidParams(
            f"{_PROBLEM}: the file ends at event {said.last_seq}, the next segment begins at {until + 1}"
        )


def _require_sound(draft: Path, kind: FileKind, call: CallContext) -> None:
    """Look at every page and at the hash of every event."""
    connection = open_writer(draft, kind)
    try:
        with Database(connection, draft).during(call, "checking the file failed"):
            (finding,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if finding != "ok":
                raise Quarantined(f"{_PROBLEM}: the file is damaged: {finding}")
            for seq, content, content_hash in connection.execute("SELECT seq, content, content_hash FROM events"):
                call.check()
                if not store.is_content_of(content, content_hash):
                    raise Quarantined(f"{_PROBLEM}: event {seq} of the file does not match its hash")
    except StoreLost as lost:
        raise Quarantined(f"{_PROBLEM}: the file is damaged: {lost.error.message}") from lost
    finally:
        connection.close()


def _finish(draft: Path, kind: FileKind, readable: Path | None, last_seq: int, call: CallContext) -> int:
    """Add the events that follow, mark the file as restored, and leave it as one durable file without a WAL.

    Returns its last seq.
    """
    connection = open_writer(draft, kind, checked=True)
    try:
        with transaction(connection, call):
            for event in _events_after(readable, kind, last_seq):
                call.check()
                if event.seq != last_seq + 1:
                    break
                store.copy_event(connection, event)
                last_seq = event.seq
            sessions.count_anew(connection)
            meta.write(connection, store.RESTORED, 1)
        checkpoint(connection, "TRUNCATE")
    except sqlite3.Error as error:
        raise Quarantined(f"{_PROBLEM}: {error}") from error
    finally:
        connection.close()
    return last_seq


def _events_after(readable: Path | None, kind: FileKind, seq: int) -> Iterator[EventRow]:
    """Yield what could still be read of the damaged segment behind a seq, in order."""
    if readable is None:
        return
    connection = open_reader(readable, copy_kind(kind))
    try:
        yield from store.events_between(connection, seq, SEQ_MAX, SEQ_MAX)
    finally:
        connection.close()


def _count_after(readable: Path | None, kind: FileKind, seq: int) -> int:
    return sum(1 for _ in _events_after(readable, kind, seq))
