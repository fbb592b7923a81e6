"""Core's part in a backup: its copy, and the folder of all backups, which its worker owns."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from actors.child import CallContext
from actors.core_writer import store
from actors.messages.backup import (
    BackedUp,
    BackUp,
    BackupBegun,
    BeginBackup,
    DropBackup,
    FinishBackup,
    ListBackups,
    StopBackUp,
    VerifyBackup,
)
from actors.messages.base import Done, Message, Row, Rows
from actors.sql import meta
from actors.sql.backup_files import Pace, copy_database, describe_database
from actors.sql.backup_folder import Manifest, client_row, manifest_of, verify
from actors.sql.backup_room import LANE, BackupRoom, as_failures
from actors.sql.database import FileKind, file_bytes, wal_bytes
from actors.sql.rows import encode_row, page, rows_limit

ROOM = "core_writer"
LANES: dict[type[Message], str] = {
    **dict.fromkeys((BeginBackup, BackUp, FinishBackup, DropBackup, VerifyBackup), LANE),
    **dict.fromkeys((ListBackups, StopBackUp), "read"),  # they wait for no copy
}


class Backups:
    """What core's worker does about backups."""

    def __init__(self, room: BackupRoom, path: Path, kind: FileKind, identity: str) -> None:
        self._room = room
        self._path = path
        self._kind = kind
        self._identity = identity
        self._tidy = False

    def do(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do one of LANES. Raises operating errors only."""
        with as_failures():
            match message:
                case BeginBackup():
                    return self._begin(message)
                case BackUp():
                    return self._back_up(message, call)
                case FinishBackup():
                    return self._finish(message)
                case DropBackup():
                    self._room.folder.drop(message.backup)
                    return Done()
                case VerifyBackup():
                    return self._verify(message, call)
                case ListBackups():
                    return self._list(message)
                case StopBackUp():
                    self._room.stop()
                    return Done()
        raise AssertionError(f"not a message about backups: {message!r}")

    def tidy(self) -> bool:
        """Remove, once in the life of the process, what was begun and never finished."""
        if not self._tidy:
            self._tidy = True
            self._room.folder.clean()
        return False

    def _list(self, message: ListBackups) -> Rows:
        limit = rows_limit(message.limit)
        found = [client_row(each) for each in self._room.folder.manifests()]
        if message.before is not None:
            before = message.before
            found = [row for row in found if str(row["backup"]) < before]
        return page(map(encode_row, found[: limit + 1]), limit)

    def _begin(self, message: BeginBackup) -> BackupBegun:
        for found in self._room.folder.manifests():
            if message.request_id is not None and getattr(found, "request_id", None) == message.request_id:
                assert isinstance(found, Manifest)
                return BackupBegun(backup=found.backup, finished=encode_row(client_row(found)))
        self._tidy = True
        return BackupBegun(backup=self._room.folder.begin(datetime.now(UTC)))

    def _back_up(self, message: BackUp, call: CallContext) -> BackedUp:
        draft = self._room.draft(message.backup)
        self._room.require_room(file_bytes(self._path) + wal_bytes(self._path))
        target = draft / ROOM / store.FILE_NAME
        copy_database(self._path, self._kind, target, self._room.check(call), self._kind.journal_bytes_max)
        last = 0

        def look(connection: sqlite3.Connection) -> None:
            nonlocal last
            last = meta.read_counter(connection, store.CORE_SEQ)

        file = describe_database(draft, target, self._kind, self._room.pace(call), look=look)
        return BackedUp(files=(file,), core_seq=last)

    def _finish(self, message: FinishBackup) -> Row:
        manifest = manifest_of(
            message.backup,
            self._identity,
            message.parts,
            program=message.program,
            request_id=message.request_id,
            now=datetime.now(UTC),
        )
        self._room.draft(message.backup)
        self._room.folder.finish(manifest)
        removed = self._room.folder.prune(message.kept)
        return Row(row=encode_row({**client_row(manifest), "removed": removed}))

    def _verify(self, message: VerifyBackup, call: CallContext) -> Row:
        path = self._room.folder.path_of(message.backup)
        manifest = verify(path, Pace(self._room.check(call), hurry=lambda: True))
        return Row(row=encode_row({**client_row(manifest), "verified": True}))
