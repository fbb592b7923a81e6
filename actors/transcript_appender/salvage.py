"""What can still be read of damaged segments, copied row by row into files of its own that are whole.

    readable/00000001.db    the same tables as a segment; derived: may be deleted, and is made again

All reading goes there, so no query ever meets a damaged page. It is made in the background on a lane of its own, the
newest events first, because those are the ones that are asked for, and repeated, most. How far it has come is kept in
the copy, so it goes on after a restart. The lanes that read look at `progress`; each is replaced as a whole.

What is missing afterwards is said by `holes`: ranges of seqs in which there may have been events. The last one reaches
to the next segment, as nobody can know how far a lost tail went.
"""

import sqlite3
import threading
import time
from pathlib import Path

import msgspec

from actors.child import StoreLost
from actors.errors import BulkheadError
from actors.sql import meta
from actors.sql.database import (
    Database,
    FileKind,
    Until,
    checkpoint,
    open_writer,
    prepare_directory,
    remove_database,
    transaction,
)
from actors.transcript_appender import sessions, store
from actors.transcript_appender.catalogue import Book, Segment
from actors.transcript_appender.drafts import key_of_source
from actors.transcript_appender.soundness import is_sound
from actors.transcript_appender.store import EventRow
from actors.transcript_appender.views import View, open_views

FOLDER = "readable"
HOLES_MAX = 200
_ROWS = 256
_STEP_S = 30.0
_RETRY_S = 5.0
_TRIES_MAX = 3
# Half of the time at most, so that appends don't wait for this lane's share of the interpreter.
_REST_S_MAX = 0.05
_POSITION, _COMPLETE, _SOURCE, _HOLES = "position", "complete", "source", "holes"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the copy of a segment is: every event with seq >= `position` that can be read is in it.

    `path` is None while there is no copy. `holes` are (first, last) ranges that may lack events, once `complete`.
    """

    position: int
    path: Path | None = None
    complete: bool = False
    events: int = 0
    holes: tuple[tuple[int, int], ...] = ()


class Salvage:
    """Makes the readable copies of all damaged segments of a catalogue."""

    def __init__(self, book: Book, kind: FileKind) -> None:
        self.revision = 0
        self._book = book
        self.kind = kind
        self._folder = book.folder / FOLDER
        self._progress: dict[int, Progress] = {}
        self._advanced = threading.Condition()
        self._job: _Job | None = None
        self._tries = 0
        self._retry_at = 0.0

    def progress(self, segment: Segment) -> Progress:
        """Return how far the copy of a damaged segment is."""
        found = self._progress.get(segment.number)
        return Progress(position=self._book.catalogue.until(segment) + 1) if found is None else found

    def wait(self, segment: Segment, position: int, seconds: float) -> Progress:
        """Wait a moment for the copy to come down to a seq; return how far it is."""
        give_up = time.monotonic() + seconds
        with self._advanced:
            while (left := give_up - time.monotonic()) > 0:
                progress = self.progress(segment)
                if progress.complete or progress.position <= position:
                    break
                self._advanced.wait(left)
        return self.progress(segment)

    def begin(self, seconds: float) -> None:
        """Work for a moment at the start, so that a segment of moderate size can be read from the first call on."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._step():
            pass

    def tend(self) -> bool:
        """Copy a slice; return whether there is more to do at once."""
        if time.monotonic() < self._retry_at:
            return False
        started = time.monotonic()
        more = self._step()
        if more:
            time.sleep(min(_REST_S_MAX, time.monotonic() - started))
        return more

    def forget(self, segment: Segment) -> None:
        """Drop the copy of a segment that is whole again."""
        if self._job is not None and self._job.segment.number == segment.number:
            self._job.close()
            self._job = None
        self._progress.pop(segment.number, None)
        self.revision += 1
        remove_database(self._path(segment))

    def close(self) -> None:
        """Close the files of the copy that is being made."""
        if self._job is not None:
            self._job.close()
            self._job = None

    def _step(self) -> bool:
        try:
            if self._job is None and not self._take_up():
                return False
            assert self._job is not None
            self._post(self._job.segment, self._job.step())
        except (BulkheadError, StoreLost, OSError, sqlite3.Error, ValueError):
            # The copy is derived, and the disk that it is made on has just lost something: another time, or anew.
            self._give_up()
            return False
        self._tries = 0
        if self._job.done:
            self.close()
        return True

    def _take_up(self) -> bool:
        """Begin, or go on, with the newest damaged segment that has no complete copy."""
        for segment in reversed(self._book.catalogue.damaged()):
            if self.progress(segment).complete:
                continue
            prepare_directory(self._folder)
            until = self._book.catalogue.until(segment)
            self._job = _Job(segment, self._book.path_of(segment), self._path(segment), self.kind, until)
            return True
        return False

    def _give_up(self) -> None:
        self._tries += 1
        self._retry_at = time.monotonic() + _RETRY_S
        if self._job is None:
            return
        segment = self._job.segment
        self.close()
        if self._tries % _TRIES_MAX == 0:
            self.forget(segment)

    def _post(self, segment: Segment, progress: Progress) -> None:
        before = self._progress.get(segment.number)
        with self._advanced:
            self._progress[segment.number] = progress
            self._advanced.notify_all()
        if before is None or before.path != progress.path or before.complete != progress.complete:
            self.revision += 1

    def _path(self, segment: Segment) -> Path:
        return self._folder / segment.name


class _Job:
    """The copying of one segment."""

    def __init__(self, segment: Segment, damaged: Path, path: Path, kind: FileKind, until: int) -> None:
        self.segment = segment
        self.done = False
        self._path = path
        self._until = until
        self._views: list[View] | None = None
        self._damaged = damaged
        self._segment_kind = kind
        self._database = self._open(copy_kind(kind))

    def close(self) -> None:
        """Close the files, and remove the copy that stood in for a first page."""
        for view in self._views or ():
            view.close()
        self._views = None
        remove_database(self._scratch)
        self._database.close()

    @property
    def _scratch(self) -> Path:
        return self._path.with_suffix(".first-page.db")

    def step(self) -> Progress:
        """Copy the next rows below where it stands, or find that it is complete."""
        call = Until.after(_STEP_S)
        with self._database.during(call, "the readable copy failed") as connection:
            position = meta.read_counter(connection, _POSITION)
            if not meta.read_counter(connection, _COMPLETE):
                if self._views is None:
                    self._views = open_views(self._damaged, self._segment_kind, self._scratch)
                with transaction(connection, call):
                    position = self._copy_below(connection, position)
                    meta.write(connection, _POSITION, position)
                    if position <= self.segment.first_seq:
                        self._complete(connection)
                if position <= self.segment.first_seq:
                    checkpoint(connection, "TRUNCATE")
            self.done = bool(meta.read_counter(connection, _COMPLETE))
            return self._progress(connection, position)

    def _progress(self, connection: sqlite3.Connection, position: int) -> Progress:
        holes = meta.read_text(connection, _HOLES) or "[]"
        return Progress(
            position=position,
            path=self._path,
            complete=self.done,
            events=store.count_events(connection) if self.done else 0,
            holes=msgspec.json.decode(holes, type=tuple[tuple[int, int], ...]),
        )

    # ------------------------------------------------------------ the file

    def _open(self, kind: FileKind) -> Database:
        """Open the copy where it was left, or begin a new one."""
        try:
            database = Database(open_writer(self._path, kind), self._path)
            if self._is_of_this_source(database.connection):
                return database
            database.close()
        except (BulkheadError, sqlite3.Error):
            pass  # damaged, or of an earlier program: it is made again
        remove_database(self._path)
        database = Database(open_writer(self._path, kind), self._path)
        with transaction(database.connection, Until.after(_STEP_S)):
            meta.write(database.connection, _SOURCE, self._source)
            meta.write(database.connection, _POSITION, self._until + 1)
        return database

    def _is_of_this_source(self, connection: sqlite3.Connection) -> bool:
        return meta.read_text(connection, _SOURCE) == self._source

    @property
    def _source(self) -> str:
        """Return what tells one damage of this segment from another."""
        return f"{self.segment.number} {self.segment.first_seq} {self._until} {self.segment.at}"

    # ------------------------------------------------------------ rows

    def _copy_below(self, connection: sqlite3.Connection, top: int) -> int:
        """Copy the next rows below `top`; return the seq down to which everything has been tried."""
        rows: dict[int, EventRow] = {}
        reached = self.segment.first_seq
        for view in self._views or ():
            found, tried = view.rows_below(top, self.segment.first_seq, _ROWS)
            # The view that gets on least decides how far this slice goes; the others add what it could not read.
            reached = max(reached, tried)
            for row in found:
                if row.seq not in rows and self._is_proven(row):
                    rows[row.seq] = row
            if len(rows) == top - reached:
                break  # nothing is missing, which is so in most slices
        for seq in sorted(rows):
            if seq >= reached:
                store.copy_event(connection, rows[seq])
        return reached

    def _is_proven(self, row: EventRow) -> bool:
        """Say whether a row is sound, and known to an index of at least one view unless none can be read."""
        if not (isinstance(row.seq, int) and self.segment.first_seq <= row.seq <= self._until and is_sound(row)):
            return False
        contradicted = False
        for view in self._views or ():
            confirmed = view.confirms(row)
            if confirmed:
                return True
            contradicted = contradicted or confirmed is False
        return not contradicted

    def _complete(self, connection: sqlite3.Connection) -> None:
        """Add what is derived from the events, and what the segment noted besides them."""
        sessions.count_anew(connection)
        for view in self._views or ():
            for tenant, request_id, seq in view.requests():
                store.copy_request(connection, tenant, request_id, seq)
            for key, seq, ts, seen in view.recent():
                event = store.event_at(connection, seq) if isinstance(seq, int) else None
                if event is not None and event.ts == ts and _source_key(event) == key:
                    store.remember_recent(connection, key, seq=seq, ts=ts, seen=seen)
        holes = store.find_holes(connection, self.segment.first_seq, self._until, HOLES_MAX)
        meta.write(connection, _HOLES, msgspec.json.encode(holes).decode())
        meta.write(connection, _COMPLETE, 1)


def _source_key(event: EventRow) -> bytes:
    return key_of_source(event.content_hash, event.tenant, event.session_id, event.channel, event.project, event.actor)


def copy_kind(kind: FileKind) -> FileKind:
    """Return what kind of file a readable copy is: a segment's tables, marked so that it is never taken for one."""
    application_id = 0x62685244  # "bhRD"
    schema = kind.schema.replace(f"application_id = {kind.application_id:#x}", f"application_id = {application_id:#x}")
    assert schema != kind.schema, "the schema sets another application_id than the kind has"
    return FileKind(
        name="readable copy",
        application_id=application_id,
        user_version=kind.user_version,
        schema=schema,
        synchronous="NORMAL",
        busy_timeout_ms=kind.busy_timeout_ms,
        journal_bytes_max=kind.journal_bytes_max,
        check_bytes_max=64 * 1024 * 1024,
    )
