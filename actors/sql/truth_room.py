"""What the workers of core_writer and transcript_appender have in common: a truth, its readers, its keyword index.

Two lanes. `write` has the only writing connection of the file: it writes, checkpoints and does the upkeep. `read` has
a read-only connection and the keyword index, which it brings up to date in idle slices and before a search; so
neither a search nor a broken index can hold up an append.

The connections are not closed at the end: closing the last one would checkpoint and delete the WAL, work that does
not belong into a shutdown that may be cut short by SIGKILL. The end of the process frees the locks, and the next
one reads the WAL.

A room gives its file and its answers; see the methods that raise NotImplementedError.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from sqlite3 import Connection, sqlite_version

import msgspec

from actors.child import CallContext, StoreLost
from actors.errors import BulkheadError
from actors.messages import Message
from actors.settings import RoomSetup
from actors.sql import keywords, meta
from actors.sql.database import (
    Call,
    Database,
    FileKind,
    Until,
    checkpoint,
    file_bytes,
    open_reader,
    open_writer,
    prepare_directory,
    transaction,
    wal_bytes,
)

Facts = dict[str, int | float | str | bool | None]
_QUIET_S = 1.0
_PAUSE_S = 5.0
_UPKEEP_EVERY_S = 10.0
_IDLE_SLICE_S = 5.0
# What a search keeps of its time for fetching the rows and cutting the snippets.
_ANSWER_NS_MAX = 150_000_000
_ANSWER_SHARE = 5


class TruthRoom:
    """The worker's side of a room whose store is a truth. Subclasses are the rooms."""

    work: object
    lanes: Mapping[type[Message], str]

    def __init__(
        self, setup: RoomSetup, *, file_name: str, kind: FileKind, wal_bytes_max: int, slice_rows: int
    ) -> None:
        self.setup = setup
        self.path = Path(setup.directory) / file_name
        self.kind = kind
        self.slice_rows = slice_rows
        self.index = keywords.KeywordIndex(self.path.with_name(keywords.FILE_NAME), self.path, self.keyword_source())
        self._wal_bytes_max = wal_bytes_max
        self._databases: dict[str, Database] = {}
        self._written_at = 0.0
        self._checkpointed = 0
        self._paused_until = dict.fromkeys(self.lanes.values(), 0.0)
        self._upkeep_at = 0.0
        self._reading = False

    # ------------------------------------------------------------ what a room must say

    def keyword_source(self) -> keywords.KeywordSource:
        """Return what the keyword index follows; it is called within calls of the `read` lane."""
        raise NotImplementedError

    def prepare(self, connection: Connection) -> int:
        """Check what must hold, read what the writer keeps in memory, return the number of the last row.

        Runs in a transaction at the start. Raises Quarantined.
        """
        raise NotImplementedError

    def write(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call of the `write` lane."""
        raise NotImplementedError

    def read(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call of the `read` lane."""
        raise NotImplementedError

    def upkeep(self, connection: Connection, call: Call) -> bool:
        """Do a short slice of cleaning on the `write` lane; return whether there is more."""
        raise NotImplementedError

    # ------------------------------------------------------------ what the worker's loop asks for

    def open(self, lane: str) -> Facts:
        """Open the connections of a lane; `write` comes first and creates the file."""
        started = time.monotonic()
        if lane == "write":
            self._open_writer()
        else:
            self._databases[lane] = Database(open_reader(self.path, self.kind), self.path)
            self.index.open()
        return {"sqlite_version": sqlite_version, f"open_{lane}_ms": round((time.monotonic() - started) * 1000)}

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call on the connection of its lane."""
        lane = self.lanes[type(message)]
        database = self._databases[lane]
        with database.during(call, f"{type(message).__name__} failed") as connection:
            if lane == "write":
                database.require_in_place(type(message).__name__)
                self._written_at = time.monotonic()
                return self.write(connection, message, call)
            self._reading = True
            try:
                return self.read(connection, message, call)
            finally:
                self._reading = False

    def interrupt(self, lane: str) -> None:
        """Stop the running statement of a lane."""
        self._databases[lane].interrupt()
        if lane == "read":
            self.index.interrupt()

    def idle(self, lane: str) -> bool:
        """Do a slice of upkeep (write) or of indexing (read)."""
        if time.monotonic() < self._paused_until[lane]:
            return False
        call = Until.after(_IDLE_SLICE_S)
        try:
            with self._databases[lane].during(call, "upkeep failed") as connection:
                if lane == "read":
                    return self.index.tend(self.slice_rows)
                return self._upkeep_in_turn(connection, call) or self._tend_wal(connection)
        except BulkheadError:
            # The disk is full or busy, which is nobody's mistake: another time. Calls find out for themselves.
            self._paused_until[lane] = time.monotonic() + _PAUSE_S
            return False

    def close(self, lane: str) -> None:
        """Leave the connections to the end of the process."""

    # ------------------------------------------------------------ for the rooms

    def reader(self) -> Connection:
        """Return the reading connection."""
        return self._databases["read"].connection

    def answer_by(self, call: CallContext) -> Until:
        """Return when a search must stop looking, so that there is time left to answer with what it has."""
        left = call.deadline_ns - time.monotonic_ns()
        return Until(call.deadline_ns - min(_ANSWER_NS_MAX, left // _ANSWER_SHARE), within=call)

    def file_facts(self) -> Facts:
        """Return the sizes of the files and the state of the keyword index, for the status."""
        return {
            "bytes": file_bytes(self.path),
            "wal_bytes": wal_bytes(self.path),
            "keyword_bytes": file_bytes(self.index.path),
            "keyword_cursor": self.index.cursor,
            "keyword_rebuilt": self.index.rebuilt,
        }

    def _open_writer(self) -> None:
        prepare_directory(self.path.parent)
        if file_bytes(self.path) == 0:
            keywords.require_rows(self.path, self.kind.name, 0)
        database = Database(open_writer(self.path, self.kind), self.path)
        call = Until.after(_IDLE_SLICE_S)
        try:
            with database.during(call, f"opening {self.kind.name} failed") as connection, transaction(connection, call):
                if self.setup.identity:
                    meta.adopt_identity(connection, self.setup.identity, repr(str(self.path)))
                keywords.require_rows(self.path, self.kind.name, self.prepare(connection))
        except StoreLost as lost:
            database.close()
            raise lost.error from lost
        except BaseException:
            database.close()
            raise
        self._databases["write"] = database

    def _upkeep_in_turn(self, connection: Connection, call: Call) -> bool:
        if time.monotonic() < self._upkeep_at:
            return False
        if self.upkeep(connection, call):
            return True
        self._upkeep_at = time.monotonic() + _UPKEEP_EVERY_S
        return False

    def _tend_wal(self, connection: Connection) -> bool:
        """Copy the WAL into the file once writing has paused, and cut it down when a reader made it grow."""
        if time.monotonic() - self._written_at < _QUIET_S:
            return False
        changes = connection.total_changes
        if wal_bytes(self.path) > self._wal_bytes_max and not self._reading:
            if not checkpoint(connection, "TRUNCATE"):
                self._paused_until["write"] = time.monotonic() + _PAUSE_S
        elif changes != self._checkpointed:
            checkpoint(connection, "PASSIVE")
        self._checkpointed = changes
        return False
