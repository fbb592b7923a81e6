"""The transcript's part in a backup: what was sealed is taken over from the backup before, or copied once; the active
segment is copied as it is at one moment; a damaged one as it lies there; of an archived one its list and its archive.

The catalogue is taken first. Events that are appended meanwhile may be in the copy of the segment that was active then
or in none; all those before are in it.
"""

import sqlite3
from pathlib import Path

import msgspec

from actors.child import CallContext
from actors.messages.backup import BackedUp, BackUp, BackupFile
from actors.sql.backup_files import copy_database, copy_raw, describe_database, describe_raw, link, origin_of
from actors.sql.backup_folder import Manifest
from actors.sql.backup_room import BackupRoom, as_failures
from actors.sql.database import FileKind, file_bytes, fsync_directory, wal_bytes, wal_of
from actors.transcript_appender import store
from actors.transcript_appender.catalogue import ARCHIVED, FILE_NAME, Book, Catalogue, Segment, write_catalogue

ROOM = "transcript_appender"


def back_up(room: BackupRoom, book: Book, kind: FileKind, message: BackUp, call: CallContext) -> BackedUp:
    """Copy the transcript into a backup that was begun. Raises operating errors only."""
    with as_failures():
        return _Copy(room, book, kind, message, call).make()


class _Copy:
    def __init__(self, room: BackupRoom, book: Book, kind: FileKind, message: BackUp, call: CallContext) -> None:
        self._room = room
        self._book = book
        self._kind = kind
        self._draft = room.draft(message.backup)
        self._check = room.check(call)
        self._pace = room.pace(call)
        self._before = room.folder.newest()
        self._linked = 0
        self._last_seq = 0

    def make(self) -> BackedUp:
        catalogue = msgspec.structs.replace(self._book.catalogue, suspicion=None)
        (self._draft / ROOM).mkdir(mode=0o700, exist_ok=True)
        files = [file for segment in catalogue.segments for file in self._segment(segment)]
        files.append(self._catalogue(catalogue))
        return BackedUp(files=tuple(files), linked=self._linked, event_seq=self._last_seq)

    def _segment(self, segment: Segment) -> list[BackupFile]:
        self._check()
        if segment.state == "damaged":
            return self._raw(segment)
        if segment.state == "archived":
            return self._archived(segment)
        self._last_seq = max(self._last_seq, segment.last_seq or segment.first_seq - 1)
        origin = "" if segment.state == "active" else origin_of(self._book.path_of(segment))
        return [self._taken_over(segment, origin) or self._copied(segment, origin)]

    def _taken_over(self, segment: Segment, origin: str) -> BackupFile | None:
        """Take over what the backup before has of a segment that has not changed since."""
        if not origin or self._before is None:
            return None
        folder, manifest = self._before
        known = _find(manifest, f"{ROOM}/{segment.name}")
        if known is None or known.origin != origin or file_bytes(folder / known.path) != known.bytes:
            return None
        if not link(folder / known.path, self._draft / known.path):
            return None
        self._linked += 1
        return known

    def _copied(self, segment: Segment, origin: str) -> BackupFile:
        source, target = self._book.path_of(segment), self._draft / ROOM / segment.name
        self._room.require_room(file_bytes(source) + wal_bytes(source))
        copy_database(source, self._kind, target, self._check, self._kind.journal_bytes_max)

        def look(connection: sqlite3.Connection) -> None:
            self._last_seq = max(self._last_seq, store.last_seq(connection))

        return describe_database(self._draft, target, self._kind, self._pace, origin=origin, look=look)

    def _raw(self, segment: Segment) -> list[BackupFile]:
        path = self._book.path_of(segment)
        found = []
        for source in (path, wal_of(path)):
            if file_bytes(source):
                self._room.require_room(file_bytes(source))
                target = self._draft / ROOM / source.name
                copy_raw(source, target, self._pace)
                found.append(describe_raw(self._draft, target, self._pace))
        return found

    def _archived(self, segment: Segment) -> list[BackupFile]:
        """Take over the list of a segment's events and the archive with what they say. One that is gone is left out:
        it is for `archive.verify` to say so, and no reason to have no backup of the rest."""
        self._last_seq = max(self._last_seq, segment.last_seq or 0)
        found = []
        path = f"{ROOM}/{ARCHIVED}/{segment.name}"
        source = self._book.path_of(segment)
        if file_bytes(source):
            found.append(self._again(path, origin_of(source)) or self._list(source, path))
        if segment.archive is not None and file_bytes(archive := self._room.archives / segment.archive.name):
            path = f"{self._room.archives.name}/{archive.name}"
            found.append(self._again(path, origin_of(archive)) or self._parquet(archive, path))
        return found

    def _again(self, path: str, origin: str) -> BackupFile | None:
        """Take over a file from the backup before that has not changed since."""
        if self._before is None or not origin:
            return None
        folder, manifest = self._before
        known = next((each for each in manifest.files if (each.path, each.origin) == (path, origin)), None)
        if known is None or file_bytes(folder / path) != known.bytes or not link(folder / path, self._draft / path):
            return None
        self._linked += 1
        return known

    def _list(self, source: Path, path: str) -> BackupFile:
        """Copy a list. Its rows are no events to be counted, so its content is nobody's business."""
        self._room.require_room(file_bytes(source))
        target = self._draft / path
        copy_database(source, self._kind, target, self._check, self._kind.journal_bytes_max)
        return msgspec.structs.replace(describe_raw(self._draft, target, self._pace), origin=origin_of(source))

    def _parquet(self, source: Path, path: str) -> BackupFile:
        self._room.require_room(file_bytes(source))
        target = self._draft / path
        copy_raw(source, target, self._pace)
        return msgspec.structs.replace(describe_raw(self._draft, target, self._pace), origin=origin_of(source))

    def _catalogue(self, catalogue: Catalogue) -> BackupFile:
        path = self._draft / ROOM / FILE_NAME
        write_catalogue(path, catalogue)
        fsync_directory(path.parent)
        return describe_raw(self._draft, path, self._pace)


def _find(manifest: Manifest, path: str) -> BackupFile | None:
    return next((each for each in manifest.files if each.path == path and each.kind == "database"), None)
