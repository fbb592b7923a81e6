"""Making a damaged truth whole again, by command: the worker of a room in its maintenance mode.

The only process that has the room's files open while it runs, started for this one purpose. The new database is made
in a folder of its own, from a backup or from the rows that can still be read; it is checked completely (SQLite's
integrity_check, identity, version, and what the room knows must hold), and only then put in place (swap.py). Until then
nothing has changed, whatever happens. The old files are kept under `damaged-…/`.

What a restore can't bring back must not be given out again: the counters of the old file are carried over where they
can be read (`Keeper.settle`).
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from actors.child import CallContext, StoreLost
from actors.errors import BulkheadError, DiskFull, InvalidParams, Quarantined
from actors.messages.base import Message, Row
from actors.messages.core_writer import RestoreTruth
from actors.sql import keywords, meta, swap
from actors.sql.database import (
    Database,
    FileKind,
    checkpoint,
    file_bytes,
    fsync_directory,
    is_fresh,
    map_os_error,
    open_reader,
    open_writer,
    prepare_directory,
    require_ours,
    require_version,
    transaction,
    wal_of,
)
from actors.sql.salvage import Kept, Value, salvage

FREE_BYTES_MIN = 64 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
_HEADER_BYTES = 100
_FINDINGS_MAX = 10


class Keeper(Protocol):
    """What only the room knows of its truth."""

    kind: FileKind
    file_name: str

    def accept(self, table: str, row: Mapping[str, Value]) -> bool:
        """Say whether a salvaged row can be believed, beyond what the table itself demands."""
        ...

    def mend(self, connection: sqlite3.Connection) -> None:
        """Make what was salvaged consistent again; runs in the transaction of the salvage."""
        ...

    def settle(self, connection: sqlite3.Connection, before: Mapping[str, int]) -> None:
        """Carry over the counters of the old file, so that no number is given out twice; runs in a transaction."""
        ...

    def verify(self, connection: sqlite3.Connection) -> None:
        """Raise Quarantined when something that must hold does not."""
        ...


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, as JSON for the client."""

    restored_from: str | None
    salvaged: bool
    tables: dict[str, Kept]
    kept_aside: str
    took_ms: int


class RestoreRoom:
    """The maintenance mode of a worker: it takes one message and does nothing by itself."""

    work: object = RestoreTruth
    lanes: Mapping[type[Message], str] = {RestoreTruth: "write"}

    def __init__(self, directory: Path, identity: str, keeper: Keeper) -> None:
        self._room = directory
        self._identity = identity
        self._keeper = keeper
        self._path = directory / keeper.file_name
        self._database: Database | None = None

    def open(self, lane: str) -> dict[str, int | float | str | bool | None]:
        """Complete what an interrupted restore has left."""
        try:
            prepare_directory(self._room)
            swap.finish(self._room)
            swap.clean(self._room)
        except OSError as error:
            raise map_os_error(error, "restore failed") from error
        return {}

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Make the new database and put it in place; changes nothing when it raises."""
        assert isinstance(message, RestoreTruth)
        started, name = time.monotonic(), swap.stamp()
        work = self._room / f"{swap.WORK_PREFIX}{name}"
        try:
            work.mkdir(mode=0o700)
            tables = self._make(work, message, call)
            call.check()
            swap.begin(self._room, self._intention(work.name, f"{swap.DAMAGED_PREFIX}{name}"))
        except OSError as error:
            raise map_os_error(error, "restore failed") from error
        except StoreLost as lost:
            raise lost.error from lost  # it speaks of the new database, of which nothing is kept
        finally:
            if not (self._room / swap.INTENTION).exists():
                shutil.rmtree(work, ignore_errors=True)
        answer = Restored(
            restored_from=message.path,
            salvaged=message.path is None,
            tables=tables,
            kept_aside=f"{swap.DAMAGED_PREFIX}{name}",
            took_ms=round((time.monotonic() - started) * 1000),
        )
        return Row(row=msgspec.json.encode(answer))

    def interrupt(self, lane: str) -> None:
        """Stop the running statement when the call has expired."""
        database = self._database
        if database is not None:
            database.interrupt()

    def idle(self, lane: str) -> bool:
        """Do nothing."""
        return False

    def close(self, lane: str) -> None:
        """Leave nothing open."""

    def _intention(self, new: str, damaged: str) -> swap.Intention:
        return swap.Intention(database=self._path.name, new=new, damaged=damaged, derived=(keywords.FILE_NAME,))

    # ------------------------------------------------------------ the new database

    def _make(self, work: Path, message: RestoreTruth, call: CallContext) -> dict[str, Kept]:
        """Make the new database in its folder: complete, checked, closed and durable."""
        new = work / self._path.name
        if message.path is not None:
            self._copy(Path(message.path), new, call)
            self._require_restorable(new, message.path)
        database = self._database = Database(open_writer(new, self._keeper.kind, checked=True), new)
        try:
            with database.during(call, "restore failed") as connection:
                if message.path is not None:
                    self._check(connection, message.path)
                tables = self._fill(connection, work, message, call)
                if message.path is None:
                    self._check(connection, "what can be read")
                checkpoint(connection, "TRUNCATE")
        finally:
            self._database = None
            database.close()
        _fsync(new)
        assert file_bytes(wal_of(new)) == 0, "the new database must be one file"
        fsync_directory(work)
        return tables

    def _fill(
        self, connection: sqlite3.Connection, work: Path, message: RestoreTruth, call: CallContext
    ) -> dict[str, Kept]:
        with transaction(connection, call):
            tables = _count(connection) if message.path is not None else self._salvage(connection, work, call)
            if self._identity:
                meta.adopt_identity(connection, self._identity, repr(message.path))
            self._keeper.settle(connection, self._counters_before(work))
        return tables

    def _check(self, connection: sqlite3.Connection, what: str) -> None:
        findings = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_FINDINGS_MAX})")]
        if findings != ["ok"]:
            raise InvalidParams(f"restore refused: {what!r} is damaged: {'; '.join(findings)}")
        try:
            self._keeper.verify(connection)
        except Quarantined as error:
            raise InvalidParams(f"restore refused: {what!r} is not whole: {error.message}") from error

    def _counters_before(self, work: Path) -> dict[str, int]:
        """Return the counters of the old file, where they can be read, and how far its index of keywords reached."""
        found = {"indexed": keywords.indexed_rows(self._path.with_name(keywords.FILE_NAME))}
        # Best effort: it may be past reading, which is why we are here.
        with suppress(sqlite3.Error, BulkheadError), closing(self._open_old(work)) as old:
            found.update(meta.read_counters(old))
        return found

    # ------------------------------------------------------------ from a backup

    def _copy(self, source: Path, new: Path, call: CallContext) -> None:
        """Copy a database and its WAL, if it has one, without opening it."""
        if not source.is_absolute() or not source.is_file():
            raise InvalidParams(f"restore refused: {str(source)!r} is no file (an absolute path is needed)")
        if file_bytes(source) == 0:
            raise InvalidParams(f"restore refused: {str(source)!r} is empty")
        pairs = [(source, new)]
        if file_bytes(wal_of(source)):
            pairs.append((wal_of(source), wal_of(new)))
        size = sum(file_bytes(each) for each, _ in pairs)
        _require_room(new.parent, size)
        done = 0
        for origin, target in pairs:
            with origin.open("rb") as reading, target.open("xb") as writing:
                while piece := reading.read(_PIECE_BYTES):
                    call.check()
                    writing.write(piece)
                    done += len(piece)
                    call.progress("copying", done, size)

    def _require_restorable(self, new: Path, source: str) -> None:
        """Raise InvalidParams unless the copy is a database of ours; opening it for writing would make it one."""
        try:
            with closing(open_reader(new, self._keeper.kind, lenient=True)) as connection:
                if is_fresh(connection):
                    raise InvalidParams(f"restore refused: {source!r} holds no {self._keeper.kind.name} database")
                require_ours(connection, new, self._keeper.kind)
                if self._identity:
                    meta.require_identity(connection, self._identity, repr(source))
        except Quarantined as error:
            raise InvalidParams(f"restore refused: {error.message.replace(str(new), source)}") from error
        except sqlite3.Error as error:
            raise InvalidParams(f"restore refused: {source!r} can't be read: {error}") from error

    # ------------------------------------------------------------ from what can be read

    def _salvage(self, connection: sqlite3.Connection, work: Path, call: CallContext) -> dict[str, Kept]:
        with closing(self._open_old(work)) as old:
            require_version(old, self._path, self._keeper.kind)
            tables = salvage(old, connection, self._keeper.accept, call)
        self._keeper.mend(connection)
        return tables

    def _open_old(self, work: Path) -> sqlite3.Connection:
        """Open the old database to read from; a copy with a new header when its own is what is damaged."""
        if file_bytes(self._path) == 0:
            raise InvalidParams(
                f"restore refused: {str(self._path)!r} is empty or gone, there is nothing to salvage",
                hint="restore a backup with --from FILE",
            )
        try:
            return self._readable(self._path)
        except (sqlite3.Error, Quarantined):
            copy = work / "headless.db"
            if not copy.exists():
                self._copy_with_header(copy, work)
        try:
            return self._readable(copy)
        except (sqlite3.Error, Quarantined) as error:
            raise InvalidParams(
                f"restore refused: nothing of {str(self._path)!r} can be read: {error}",
                hint="restore a backup with --from FILE",
            ) from error

    def _readable(self, path: Path) -> sqlite3.Connection:
        connection = open_reader(path, self._keeper.kind, lenient=True)
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _copy_with_header(self, copy: Path, work: Path) -> None:
        """Copy the old files, and give the copy the header of a database that was made a moment ago."""
        _require_room(work, file_bytes(self._path) + file_bytes(wal_of(self._path)))
        shutil.copyfile(self._path, copy)
        if file_bytes(wal_of(self._path)):
            shutil.copyfile(wal_of(self._path), wal_of(copy))
        fresh = work / "fresh.db"
        open_writer(fresh, self._keeper.kind).close()
        head = bytearray(fresh.read_bytes()[:_HEADER_BYTES])
        page_bytes = int.from_bytes(head[16:18], "big")
        head[28:32] = (file_bytes(copy) // page_bytes).to_bytes(4, "big")
        head[32:40] = bytes(8)  # no free pages: nothing is ever written to this copy
        with copy.open("r+b") as file:
            file.write(head)


def _count(connection: sqlite3.Connection) -> dict[str, Kept]:
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    found = {}
    for (name,) in names.fetchall():
        (rows,) = connection.execute(f"SELECT count(*) FROM {name}").fetchone()
        found[name] = Kept(kept=rows, lost=None)
    return found


def _require_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free - size < FREE_BYTES_MIN:
        raise DiskFull(
            f"restore refused: it needs {size} bytes, {free} are free, and {FREE_BYTES_MIN} must stay free",
            hint="free space on the disk of the data directory",
        )


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
