"""What the workers of core_writer and transcript_appender have in common: a truth, its readers, its keyword index.

Three lanes. `write` has the only writing connection of the file: it writes, checkpoints and does the upkeep. `read` has
a read-only connection, `search` another one and the keyword index, which it brings up to date in idle slices and before
a search; so neither a search nor a broken index can hold up an append, and no search a look into the history, also when
every search comes here because the generation cannot be asked.

A truth is looked at before it is opened for writing (inspection.py), and it has one writer at a time
(writer_epoch.py). When it fails the look, a room that `serves_damaged` starts all the same: it reads what can be read
(damaged.py), refuses every write, keeps its hands off the files and off the keyword index, which may be the only
witness of rows that are gone, and sets a copy aside. Only a restore by command leads out of that (restore.py).

A disk without a free byte does not take the new writer's epoch. Then the room reads only: it is nobody's writer yet, so
it commits and checkpoints nothing, refuses writes with DiskFull, and takes over as soon as there is room, before the
first write or when it is idle. Until then the writer before it, should it still live, may commit. That breaks nothing:
readers keep nothing between two calls, and what a writer keeps is read when it takes over, in the same transaction.

The connections are not closed at the end: closing the last one would checkpoint and delete the WAL, work that does
not belong into a shutdown that may be cut short by SIGKILL. The end of the process frees the locks, and the next
one reads the WAL.

A room gives its file and its answers; see the methods that raise NotImplementedError.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection, Error, sqlite_version
from threading import Lock

import msgspec

from actors.child import CallContext, StoreLost
from actors.errors import BulkheadError, DiskFull, NotFound, Quarantined, StoreBroken
from actors.messages.base import Message
from actors.settings import RoomSetup
from actors.sql import keywords, meta, swap, writer_epoch
from actors.sql.damaged import Damaged, open_damaged
from actors.sql.database import (
    Call,
    Database,
    FileKind,
    NotOurs,
    Until,
    WriterConnection,
    checkpoint,
    file_bytes,
    map_os_error,
    open_reader,
    open_writer,
    prepare_directory,
    transaction,
    translated,
    wal_bytes,
)
from actors.sql.inspection import inspect
from actors.sql.set_aside import SetAside

Facts = dict[str, int | float | str | bool | None]
_QUIET_S = 1.0
_PAUSE_S = 5.0
_NO_ROOM_PAUSE_S = 1.0
_UPKEEP_EVERY_S = 10.0
_IDLE_SLICE_S = 5.0
# What a search keeps of its time for fetching the rows and cutting the snippets.
_ANSWER_NS_MAX = 150_000_000
_ANSWER_SHARE = 5
# After so many changed rows, or so much more WAL, it is copied into the file before the next write. SQLite does so by
# itself at 1,000 pages, but keeps the errors to itself; done by us, a failed fsync is seen and the process replaced.
_CHECKPOINT_CHANGES = 400
_CHECKPOINT_BYTES = 2 * 1024 * 1024
# Copying damaged files: a slice between two looks at the queue; and all the time there is when the start fails.
_ASIDE_SLICE_S = 0.05
_ASIDE_START_S = 4.0


class TruthRoom:
    """The worker's side of a room whose store is a truth. Subclasses are the rooms.

    `serves_damaged` says whether it goes on reading when its file fails verification; `refused_when_damaged` are the
    reads that would do harm then.
    """

    work: object
    lanes: Mapping[type[Message], str]
    serves_damaged = False
    refused_when_damaged: tuple[type[Message], ...] = ()

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
        self._wal_then = 0  # its size at the last checkpoint
        self._finding: Quarantined | None = None
        self._no_room: DiskFull | None = None  # why this process is not the writer of the file yet
        self._damaged: Damaged | None = None
        self._damaged_turn = Lock()  # its connection is one for all lanes
        self._aside: SetAside | None = None
        self._paused_until = dict.fromkeys(self.lanes.values(), 0.0)
        self._upkeep_at = 0.0
        self._reading: set[str] = set()  # the lanes that are

    # ------------------------------------------------------------ what a room must say

    def keyword_source(self) -> keywords.KeywordSource:
        """Return what the keyword index follows; it is called within calls of the `search` lane."""
        raise NotImplementedError

    def verify(self, connection: Connection) -> int | None:
        """Check what must hold without changing anything; return the number of the last row if that is checked.

        Runs in a read transaction before the file is opened for writing. Raises Quarantined.
        """
        return None

    def prepare(self, connection: Connection) -> int:
        """Check what must hold, read what the writer keeps in memory, return the number of the last row.

        Runs in the transaction that makes us the writer. Raises Quarantined.
        """
        raise NotImplementedError

    def write(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call of the `write` lane."""
        raise NotImplementedError

    def read(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call of the lanes `read` and `search`."""
        raise NotImplementedError

    def upkeep(self, connection: Connection, call: Call) -> bool:
        """Do a short slice of cleaning on the `write` lane; return whether there is more."""
        raise NotImplementedError

    # ------------------------------------------------------------ what the worker's loop asks for

    def open(self, lane: str) -> Facts:
        """Open the connections of a lane; `write` comes first and creates the file."""
        started = time.monotonic()
        facts: Facts = {}
        if lane == "write":
            facts = self._open_truth()
        elif self._damaged is not None:
            self._databases[lane] = Database(self._damaged.connection, self.path)
        else:
            self._databases[lane] = Database(open_reader(self.path, self.kind), self.path)
            if lane == "search":
                self.index.open()
        took_ms = round((time.monotonic() - started) * 1000)
        return {"sqlite_version": sqlite_version, f"open_{lane}_ms": took_ms, **facts}

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call on the connection of its lane."""
        lane = self.lanes[type(message)]
        if self._finding is not None:
            return self._handle_damaged(message, call, self._finding)
        database = self._databases[lane]
        with database.during(call, f"{type(message).__name__} failed") as connection:
            if lane == "write":
                database.require_in_place(type(message).__name__)
                self._require_writer(database, call)
                self._relieve_wal(connection)
                self._written_at = time.monotonic()
                return self.write(connection, message, call)
            with self.reading_on(lane):
                return self.read(connection, message, call)

    def interrupt(self, lane: str) -> None:
        """Stop the running statement of a lane."""
        database = self._databases.get(lane)
        if database is not None:
            database.interrupt()
        if lane == "search":
            self.index.interrupt()

    def idle(self, lane: str) -> bool:
        """Do a slice of upkeep (write) or of indexing (search)."""
        if self._finding is not None:
            return lane == "write" and self._aside is not None and self._aside.step(_ASIDE_SLICE_S)
        if lane == "read" or time.monotonic() < self._paused_until[lane]:
            return False
        call = Until.after(_IDLE_SLICE_S)
        try:
            with self._databases[lane].during(call, "upkeep failed") as connection:
                if lane == "search":
                    return self.index.tend(self.slice_rows)
                self._require_writer(self._databases[lane], call)
                return self._upkeep_in_turn(connection, call) or self._tend_wal(connection)
        except BulkheadError:
            # The disk is full or busy, which is nobody's mistake: another time. Calls find out for themselves.
            pause_s = _PAUSE_S if self._no_room is None else _NO_ROOM_PAUSE_S
            self._paused_until[lane] = time.monotonic() + pause_s
            return False

    def close(self, lane: str) -> None:
        """Leave the connections to the end of the process."""

    # ------------------------------------------------------------ for the rooms

    def reader(self) -> Connection:
        """Return the connection of the lane `read`."""
        return self._databases["read"].connection

    @contextmanager
    def reading_on(self, lane: str) -> Iterator[None]:
        """Let the WAL not be cut down meanwhile: that would wait for this lane, and with it the next write."""
        self._reading.add(lane)
        try:
            yield
        finally:
            self._reading.discard(lane)

    def search_reader(self) -> Connection:
        """Return the connection of the lane `search`."""
        return self._databases["search"].connection

    @property
    def is_damaged(self) -> bool:
        """Say whether the truth failed its verification, so that parts of it may be refused."""
        return self._finding is not None

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
            "quarantined": None if self._finding is None else self._finding.message,
            "read_only": None if self._no_room is None else self._no_room.message,
        }

    # ------------------------------------------------------------ opening

    def _open_truth(self) -> Facts:
        """Open the file for writing; when that is out of the question, for reading what is left of it."""
        try:
            self._open_writer()
        except NotOurs:
            raise
        except Quarantined as finding:
            if not self.serves_damaged:
                raise
            return self._open_damaged(finding)
        return {} if self._no_room is None else {"read_only": self._no_room.message}

    def _open_writer(self) -> None:
        checked = self._prepare_files()
        database = Database(open_writer(self.path, self.kind, checked=checked), self.path)
        try:
            self._take_over(database, Until.after(_IDLE_SLICE_S))
        except DiskFull as full:
            self._no_room = full
        except StoreLost as lost:
            database.close()
            raise lost.error from lost
        except BaseException:
            database.close()
            raise
        self._databases["write"] = database

    def _take_over(self, database: Database, call: Call) -> None:
        """Become the only writer of the file; durable on return. DiskFull: we are not, and nothing has changed."""
        name, writer = self.kind.name, database.connection
        assert isinstance(writer, WriterConnection)
        writer.fence = None  # an attempt that failed has left one
        try:
            with database.during(call, f"opening {name} failed") as connection, transaction(connection, call):
                if self.setup.identity:
                    meta.adopt_identity(connection, self.setup.identity, repr(str(self.path)))
                keywords.require_rows(self.path, name, self.prepare(connection))
                writer_epoch.take_over(writer, repr(str(self.path)))
        except DiskFull as full:
            text = f"{name} has no writer yet, as the disk has no room for one to begin: {full.message}"
            raise DiskFull(text, hint="free space on the disk of the data directory; reads and search go on") from full

    def _require_writer(self, database: Database, call: Call) -> None:
        """Take over when the start had no room for it; raise DiskFull as long as there is none."""
        if self._no_room is None:
            return
        try:
            self._take_over(database, call)
        except DiskFull as full:
            self._no_room = full
            raise
        except Quarantined as finding:
            raise StoreLost(finding) from finding  # the next process looks at it as at every start
        self._no_room = None

    def _write_to(self, database: Database) -> None:
        """Write to another file from now on; we are its writer already."""
        self._databases["write"] = database
        self.path = database.path
        self._checkpointed, self._wal_then = database.connection.total_changes, 0

    def _prepare_files(self) -> bool:
        """Complete a restore that was interrupted, and look at the files; return whether they could be looked at."""
        room = self.path.parent
        try:
            prepare_directory(room)
            swap.finish(room)
            swap.clean(room)
        except OSError as error:
            raise map_os_error(error, f"opening {self.kind.name} failed") from error
        if file_bytes(self.path) == 0:
            keywords.require_rows(self.path, self.kind.name, 0)
        return inspect(self.path, self.kind, self._verify)

    def _verify(self, connection: Connection) -> None:
        if self.setup.identity:
            meta.require_identity(connection, self.setup.identity, repr(str(self.path)))
        last = self.verify(connection)
        if last is not None:
            keywords.require_rows(self.path, self.kind.name, last)

    # ------------------------------------------------------------ a damaged truth

    def _open_damaged(self, finding: Quarantined) -> Facts:
        """Open what can be read, and begin a copy of the files; raises the finding when nothing can be read."""
        aside = SetAside(self.path, finding.message)
        try:
            self._damaged = open_damaged(self.path, self.kind, self.setup.identity)
        except Quarantined:
            aside.step(_ASIDE_START_S)
            raise finding from None
        self._finding, self._aside = finding, aside
        self.index = _NoIndex(self.index.path, self.path, self.keyword_source())
        return {
            "quarantined": finding.message,
            "refused": ", ".join(sorted(self._damaged.refused)),
            "set_aside": aside.note,
        }

    def _handle_damaged(self, message: Message, call: CallContext, finding: Quarantined) -> msgspec.Struct:
        what = type(message).__name__
        if self.lanes[type(message)] == "write" or isinstance(message, self.refused_when_damaged):
            raise self._refusal(what, finding.message)
        try:
            with (
                self._damaged_turn,
                self._databases[self.lanes[type(message)]].during(call, f"{what} failed") as connection,
            ):
                return self.read(connection, message, call)
        except (StoreLost, StoreBroken, Error, msgspec.MsgspecError, ValueError, TypeError) as error:
            # It met damage, in whatever shape it comes: pages, cells, texts, JSON. The rest can still be read.
            raise self._refusal(what, str(error)) from error
        except NotFound as error:
            raise self._refusal(what, f"{error.message} in what is left") from error

    def _refusal(self, what: str, why: str) -> Quarantined:
        room = self.path.parent.name
        return Quarantined(
            f"{what} refused: {self.kind.name} is quarantined: {why}",
            hint=f"what can be read is served; bulkhead restore {room} --from FILE, or --salvage, makes it whole again",
        )

    # ------------------------------------------------------------ the WAL

    def _relieve_wal(self, connection: Connection) -> None:
        """Copy the WAL into the file when enough has been written since the last time."""
        changes, size = connection.total_changes, wal_bytes(self.path)
        if changes - self._checkpointed < _CHECKPOINT_CHANGES and size - self._wal_then < _CHECKPOINT_BYTES:
            return
        self._checkpointed, self._wal_then = changes, size
        try:
            checkpoint(connection, "PASSIVE")
        except Error as error:
            failure = translated(error, "checkpoint failed")
            if isinstance(failure, StoreLost) or not isinstance(failure, BulkheadError):
                raise failure from error
            # The disk is full or the file busy. What is in the WAL is safe there; the write finds out for itself.

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


class _NoIndex(keywords.KeywordIndex):
    """The index of a damaged truth: it finds nothing, is behind by everything, and leaves its file alone.

    Following the truth, it would forget the rows that the truth has lost, and with them the proof that they existed.
    """

    def _usable(self) -> None:
        return None
