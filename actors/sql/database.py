"""SQLite as this house uses it: how a file is opened, how a transaction ends, what its errors mean.

Shared by the workers of core_writer, transcript_appender and cache_manager; with their stores the only code that
touches sqlite3. It owns no file. Each file has one owner process with one writer connection (its only writer and
checkpointer: the WAL-reset bug of SQLite before 3.51.3 needs two) and read-only connections on other threads.

Promises:
* a file that is damaged, foreign or newer than this program is refused (Quarantined) and left as it is;
* a transaction is IMMEDIATE, stops at the deadline of its call, and leaves nothing behind when it fails;
* a running statement stops at the deadline of its call (progress handler), or when the call is interrupted;
* an error of the disk reaches the caller with the outcome that is known: `unknown` only when COMMIT failed;
* a writer that has been replaced commits nothing (`actors/sql/writer_epoch.py` sets the fence, `transaction` asks it).

Not in here: SQL about anything that a room stores; what is done with a damaged truth (inspection.py, restore.py).
"""

import errno
import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import quote

from actors.child import StoreLost
from actors.errors import BulkheadError, DiskFull, Interrupted, Outcome, Quarantined, StoreBroken, StoreBusy

VERSION_MIN = (3, 38, 0)  # STRICT tables (3.37), JSON functions built in (3.38)
QUICK_CHECK_BYTES_MAX = 256 * 1024 * 1024
# How long opening a file may wait for others that open it too: the switch to WAL does not use the busy handler.
OPEN_BUSY_S = 10.0
# Virtual machine steps between two looks at the deadline: 0.2 to 1 ms.
PROGRESS_STEPS = 10_000
_ROW_BYTES_MAX = 128 * 1024 * 1024
_SQL_BYTES_MAX = 256 * 1024
_VARIABLES_MAX = 10_000
_AUTOCHECKPOINT_PAGES = 1000
# A cell that is no text any more; the module sqlite3 has no code for it.
_NOT_TEXT = "Could not decode to UTF-8"
# The second: no room for the WAL index, without which nothing can be read either.
_FULL = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
_FATAL = ("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB")
_REFUSED = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_NOLFS")
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")


class Call(Protocol):
    """What a statement needs to know of the call it runs for; `actors.child.CallContext` is one."""

    def expired(self) -> bool:
        """Say whether the work should stop."""
        ...

    def check(self) -> None:
        """Raise Interrupted when the work should stop."""
        ...


class Until:
    """A deadline of our own (CLOCK_MONOTONIC ns): for idle work, and for a step that must leave time for the next.

    With `within`, the end of that call is the end of this as well.
    """

    def __init__(self, deadline_ns: int, within: Call | None = None) -> None:
        self.deadline_ns = deadline_ns
        self._within = within

    @classmethod
    def after(cls, seconds: float) -> "Until":
        """Return a deadline some seconds from now."""
        return cls(time.monotonic_ns() + int(seconds * 1e9))

    def expired(self) -> bool:
        """Say whether the deadline has passed."""
        if self._within is not None and self._within.expired():
            return True
        return time.monotonic_ns() >= self.deadline_ns

    def check(self) -> None:
        """Raise Interrupted when the deadline has passed."""
        if self.expired():
            raise Interrupted("stopped at its deadline; nothing was changed", outcome="not_executed")


class NotOurs(Quarantined):
    """The file is another data directory's, or of a version that this program can't read: none of it is served."""


class WriterConnection(sqlite3.Connection):
    """The only writing connection of a file. `fence` is called at the begin of each of its transactions."""

    fence: Callable[[], None] | None = None


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """What kind of database a file is: its marks, its schema, and how durable and how patient it is.

    `schema` is SQL that creates everything in an empty file; it sets `application_id` and `user_version` itself.
    `migrations` bring an older file up to date: the key is the version that one starts from, and it ends with the next.
    """

    name: str
    application_id: int
    user_version: int
    schema: str
    synchronous: Literal["FULL", "NORMAL", "OFF"]
    busy_timeout_ms: int = 250
    journal_bytes_max: int = 16 * 1024 * 1024
    incremental_vacuum: bool = False
    secure_delete: bool = True
    check_bytes_max: int = QUICK_CHECK_BYTES_MAX
    migrations: Mapping[int, str] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        """Return the oldest version that can be brought up to date."""
        return min(self.migrations, default=self.user_version)


def read_schema(package: str, *names: str) -> str:
    """Return the text of `schema.sql` of a room, or of these files of its folder, one after the other."""
    texts = (resources.files(package).joinpath(name).read_text(encoding="utf-8") for name in names or ("schema.sql",))
    return "\n".join(texts)


def prepare_directory(path: Path) -> None:
    """Create the folder of a room, readable by its owner only; its name is durable on return."""
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fsync_directory(path.parent)


# ---------------------------------------------------------------- opening


def open_writer(path: Path, kind: FileKind, *, checked: bool = False) -> WriterConnection:
    """Open the only writing connection of a file; create the file and its schema when there is none.

    Raises Quarantined when the file is damaged, of another program or of a newer version of this one; DiskFull,
    StoreBusy and StoreBroken as the disk has it. The file is never removed or repaired here; but closing the last
    connection of a file copies its WAL into it, so a truth is looked at read-only first (`inspection.inspect`), and
    is then `checked` already.
    """
    _require_version()
    try:
        connection = connect(path, "rwc", kind)
    except sqlite3.Error as error:
        raise opening_error(error, path, kind) from error
    try:
        if is_fresh(connection):
            connection.execute("PRAGMA page_size = 4096")
            connection.execute(f"PRAGMA auto_vacuum = {'INCREMENTAL' if kind.incremental_vacuum else 'NONE'}")
        else:
            require_ours(connection, path, kind)
        retry_busy(lambda: _switch_to_wal(connection))
        _set_pragmas(connection, kind)
        retry_busy(lambda: _apply_schema(connection, kind))
        retry_busy(lambda: _bring_up_to_date(connection, path, kind))
        require_ours(connection, path, kind)
        if not checked:
            check_quickly(connection, path, kind)
    except sqlite3.Error as error:
        connection.close()
        raise opening_error(error, path, kind) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path, kind: FileKind, *, lenient: bool = False) -> sqlite3.Connection:
    """Open a read-only connection on a file that its writer has opened before, in this process.

    It can neither write nor checkpoint, and closing it leaves the WAL alone. A `lenient` one does not look at the
    marks in the header: they may be what is damaged, or the file may be empty.
    """
    try:
        connection = connect(path, "ro", kind)
    except sqlite3.Error as error:
        raise opening_error(error, path, kind) from error
    try:
        _set_pragmas(connection, kind)
        connection.execute("PRAGMA query_only = ON")
        if not lenient:
            require_ours(connection, path, kind)
    except sqlite3.Error as error:
        connection.close()
        raise opening_error(error, path, kind) from error
    except BaseException:
        connection.close()
        raise
    return connection


def attach_reader(connection: sqlite3.Connection, path: Path, name: str) -> None:
    """Let a connection read another file of its room as schema `name`. The file can't be written through it."""
    connection.execute(f"ATTACH DATABASE :uri AS {name}", {"uri": _uri(path, "ro")})


def fsync_directory(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _require_version() -> None:
    if sqlite3.sqlite_version_info < VERSION_MIN:
        needed = ".".join(map(str, VERSION_MIN))
        raise StoreBroken(
            f"SQLite {sqlite3.sqlite_version} of this Python is too old, {needed} is needed",
            outcome="not_executed",
            hint="use a Python that comes with a newer SQLite",
        )


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.absolute()))}?mode={mode}"


def connect(path: Path, mode: Literal["ro", "rwc"], kind: FileKind) -> WriterConnection:
    """Return a bare connection: nothing is read, nothing is set but limits. Raises sqlite3.Error."""
    connection = sqlite3.connect(
        _uri(path, mode),
        uri=True,
        timeout=kind.busy_timeout_ms / 1000,
        isolation_level=None,
        cached_statements=256,
        # One thread uses a connection at a time; `interrupt` and the closing of a test come from another.
        check_same_thread=False,
        factory=WriterConnection,
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _ROW_BYTES_MAX)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, _SQL_BYTES_MAX)
    connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, _VARIABLES_MAX)
    return connection


def is_fresh(connection: sqlite3.Connection) -> bool:
    """Say whether the file is empty: nobody's mark, no table."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return bool(tables == 0 and _pragma(connection, "application_id") == 0 and _pragma(connection, "user_version") == 0)


def require_ours(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    """Raise Quarantined unless the marks in the header are of this kind, and of a version that can be opened."""
    application_id = _pragma(connection, "application_id")
    if application_id != kind.application_id:
        raise Quarantined(
            f"{str(path)!r} is not a {kind.name} database: application_id is {application_id:#x}, "
            f"expected {kind.application_id:#x}",
            hint="put the right file back, or point the daemon at another data directory",
        )
    require_version(connection, path, kind)


def require_version(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    """Raise NotOurs when the schema is newer than this program, or older than what it can bring up to date."""
    version = _pragma(connection, "user_version")
    if version > kind.user_version:
        raise NotOurs(
            f"{str(path)!r} has schema version {version}, this program knows up to {kind.user_version}",
            hint="start the newer version of bulkhead that wrote it",
        )
    if version < kind.oldest:
        raise NotOurs(f"{str(path)!r} has schema version {version}, this program needs {kind.oldest} or newer")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreBroken(
            f"the journal mode stayed {mode!r}, WAL is needed",
            outcome="not_executed",
            hint="the data directory must be on a local file system with shared memory",
        )


def _set_pragmas(connection: sqlite3.Connection, kind: FileKind) -> None:
    """Set what a connection does not keep in its file. Build defaults differ between systems, so all are set."""
    for pragma in (
        f"synchronous = {kind.synchronous}",
        "foreign_keys = ON",
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "mmap_size = 0",  # an I/O error under mmap is a SIGBUS
        "temp_store = MEMORY",  # a sort must not need room on a full disk
        f"wal_autocheckpoint = {_AUTOCHECKPOINT_PAGES}",
        f"journal_size_limit = {kind.journal_bytes_max}",
        f"secure_delete = {'ON' if kind.secure_delete else 'OFF'}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _apply_schema(connection: sqlite3.Connection, kind: FileKind) -> None:
    """Create the schema in an empty file, all or nothing; do nothing when another opener was faster."""
    if not is_fresh(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if is_fresh(connection):
            for statement in _statements(kind.schema):
                connection.execute(statement)
        # The first sync of a new WAL syncs the folder too, so the names of both files are durable with this.
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _bring_up_to_date(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    """Take an older file to the version of this program, one version a transaction; a kill leaves one of them."""
    while (version := _pragma(connection, "user_version")) < kind.user_version:
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _pragma(connection, "user_version") == version:
                for statement in _statements(kind.migrations[version]):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if "already exists" not in str(error):
                raise
            raise Quarantined(
                f"{kind.name} database {str(path)!r} is damaged: it says that it has schema version {version}, and "
                f"holds what version {version + 1} adds ({error})",
                hint="the file is kept as it is; restore it from a backup",
            ) from error
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _statements(script: str) -> Iterator[str]:
    """Cut a script into statements: `executescript` would commit the transaction it should run in."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    assert not re.sub(r"--[^\n]*", "", pending).strip(), "the schema ends within a statement"


def retry_busy(step: "_Step") -> None:
    """Repeat a step of opening while others hold the file, for at most OPEN_BUSY_S."""
    give_up = time.monotonic() + OPEN_BUSY_S
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if not _name(error).startswith(_BUSY) or time.monotonic() >= give_up:
                raise
            time.sleep(0.01)


class _Step(Protocol):
    def __call__(self) -> None: ...


def check_quickly(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    """Read every page of a file of moderate size and refuse it when SQLite finds damage."""
    if path.stat().st_size >= kind.check_bytes_max:
        return
    (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        raise Quarantined(
            f"{kind.name} database {str(path)!r} is damaged: {finding}",
            hint="the file is kept as it is; restore it from a backup",
        )


def opening_error(error: sqlite3.Error, path: Path, kind: FileKind) -> Exception:
    """Return what an error while opening means: damage of the file itself is a case for quarantine."""
    if _name(error).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return Quarantined(
            f"{kind.name} database {str(path)!r} is damaged: {error}",
            hint="the file is kept as it is; restore it from a backup",
        )
    return map_error(error, f"opening {kind.name} database {str(path)!r}") or error


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    assert isinstance(value, int)
    return value


# ---------------------------------------------------------------- working


class Database:
    """A connection with its file, and the call that it is working for.

    One thread uses it at a time; `interrupt` may come from any thread.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        self._call: Call | None = None
        self._lock = threading.Lock()
        self._place = _place(path)
        connection.set_progress_handler(self._should_stop, PROGRESS_STEPS)

    @contextmanager
    def during(self, call: Call, attempted: str) -> Iterator[sqlite3.Connection]:
        """Run statements for a call: they stop at its deadline, and their errors become operating errors.

        `attempted` is the beginning of the error messages. May be nested, with an earlier deadline inside.
        """
        outer = self._call
        self._set_call(call)
        try:
            yield self.connection
        except sqlite3.Error as error:
            raise translated(error, attempted) from error
        finally:
            self._set_call(outer)

    def interrupt(self) -> None:
        """Stop the running statement when its call has expired. A call that came after it is not touched."""
        with self._lock:
            if self._call is not None and self._call.expired():
                self.connection.interrupt()

    def require_in_place(self, what: str) -> None:
        """Raise StoreLost when the file is no longer the one at its path: a commit to it would be lost with us."""
        if not self.in_place():
            raise StoreLost(
                StoreBroken(
                    f"{what} refused: {str(self.path)!r} was removed or replaced while it was open",
                    outcome="not_executed",
                    hint="put the file back, or restore it from a backup",
                )
            )

    def in_place(self) -> bool:
        """Say whether the file and its WAL are still found under their names."""
        return _place(self.path) == self._place

    def close(self) -> None:
        """Close the connection; the writer's checkpoints when it is the last."""
        self.connection.close()

    def _set_call(self, call: Call | None) -> None:
        with self._lock:
            self._call = call

    def _should_stop(self) -> int:
        call = self._call
        return 1 if call is not None and call.expired() else 0


@contextmanager
def transaction(connection: sqlite3.Connection, call: Call) -> Iterator[None]:
    """Do the body in one IMMEDIATE transaction: durable when this returns, nothing changed when it raises.

    Raises Interrupted when the deadline passed before COMMIT, StoreBusy when the lock did not come free in time.
    When COMMIT itself fails on the disk, StoreLost says that the outcome is unknown. StoreLost as well, with nothing
    done, when another process has taken the file over (`writer_epoch.take_over`).
    """
    _begin(connection, call)
    try:
        _require_writer(connection)
        yield
        call.check()
    except BaseException:
        _rollback(connection)
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        failure = translated(error, "commit failed", outcome="unknown")
        if isinstance(failure, StoreLost):
            # The commit may be in the WAL. That a rollback fails as well does not make its outcome any clearer.
            with suppress(StoreLost):
                _rollback(connection)
        else:
            _rollback(connection)
        raise failure from error


@contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """Undo the body alone, within the transaction around it, when it raises an operating error."""
    connection.execute("SAVEPOINT part")
    try:
        yield
    except BulkheadError:
        connection.execute("ROLLBACK TO part")
        connection.execute("RELEASE part")
        raise
    connection.execute("RELEASE part")


def _begin(connection: sqlite3.Connection, call: Call) -> None:
    """Take the write lock; try again under the deadline, as one wait is kept short enough to be stopped."""
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not _name(error).startswith(_BUSY):
                raise
            if call.expired():
                raise translated(error, "write refused") from error


def _require_writer(connection: sqlite3.Connection) -> None:
    """Raise StoreLost when the connection is fenced and its file has another writer by now."""
    if isinstance(connection, WriterConnection) and connection.fence is not None:
        connection.fence()


def _rollback(connection: sqlite3.Connection) -> None:
    """End a failed transaction. SQLite has often done so itself (disk full, interrupt), and a second try would fail."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        # A connection that can't roll back can't be used again; the process is replaced, which frees its lock.
        raise StoreLost(StoreBroken(f"rollback failed: {error}", outcome="not_executed")) from error


# ---------------------------------------------------------------- errors


def translated(error: sqlite3.Error, attempted: str, *, outcome: Outcome = "not_executed") -> Exception:
    """Return what to raise for an error of SQLite: an operating error, StoreLost, or the error itself (our bug)."""
    known = map_error(error, attempted, outcome=outcome)
    if known is None:
        return error
    return StoreLost(known) if _name(error).startswith(_FATAL) else known


def map_error(error: sqlite3.Error, attempted: str, *, outcome: Outcome = "not_executed") -> BulkheadError | None:
    """Return the operating error that an error of SQLite stands for, None when it is not one but a bug of ours.

    `outcome` is what is known of the effect; it only matters for I/O errors, as the rest is rolled back.
    """
    name = _name(error)
    text = f"{attempted}: {error} ({name})"
    if name.startswith(_FULL):
        return DiskFull(text, hint="free space on the disk of the data directory; reads go on")
    if name.startswith(_BUSY):
        return StoreBusy(text, hint="another program holds the database open; close it")
    if name.startswith("SQLITE_INTERRUPT"):
        return Interrupted("stopped at its deadline; nothing was changed")
    if name.startswith(_FATAL):
        return StoreBroken(text, outcome=outcome)
    if name.startswith(_REFUSED) or str(error).startswith(_NOT_TEXT):
        # A cell that is no text is damage, but only of itself: the connection is as good as before.
        return StoreBroken(text, outcome="not_executed")
    return None


def map_os_error(error: OSError, attempted: str) -> BulkheadError:
    """Return the operating error that a failed system call on a file of ours stands for; nothing was executed."""
    text = f"{attempted}: {error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(text, hint="free space on the disk of the data directory; reads go on")
    return StoreBroken(text, outcome="not_executed")


def is_refusal(error: sqlite3.Error) -> bool:
    """Say whether the system did not let us open or lock the file as we wanted to; its content is not the matter."""
    return _name(error).startswith((*_REFUSED, *_BUSY))


def is_damage(error: sqlite3.Error) -> bool:
    """Say whether the error speaks of the content of the file or of its disk, not of the moment."""
    return _name(error).startswith(_FATAL)


def _name(error: sqlite3.Error) -> str:
    """Return SQLite's name of the error; empty for errors of the Python module itself."""
    return getattr(error, "sqlite_errorname", None) or ""


# ---------------------------------------------------------------- the WAL


def checkpoint(connection: sqlite3.Connection, mode: Literal["PASSIVE", "TRUNCATE"]) -> bool:
    """Copy the WAL into the file; PASSIVE waits for nobody. Returns whether all of it was copied.

    Of attached files nothing is copied: each has a writer of its own.

    Only the writer of the file may do so (StoreLost otherwise): two that copy and commit at once is what the WAL-reset
    bug needs.
    """
    _require_writer(connection)
    busy, log, copied = connection.execute(f"PRAGMA main.wal_checkpoint({mode})").fetchone()
    return bool(busy == 0 and log == copied)


def wal_bytes(path: Path) -> int:
    """Return the size of the WAL of a database in bytes. `stat` alone: opening the file would drop our locks on it."""
    return file_bytes(wal_of(path))


def file_bytes(path: Path) -> int:
    """Return the size of a file in bytes, 0 when there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def database_files(path: Path) -> tuple[Path, ...]:
    """Return the files that a database consists of."""
    return (path, wal_of(path), path.with_name(path.name + "-shm"))


def remove_database(path: Path) -> None:
    """Delete a database that can be made again. No connection of this process may have it open."""
    for file in database_files(path):
        file.unlink(missing_ok=True)


def wal_of(path: Path) -> Path:
    """Return the path of the WAL of a database."""
    return path.with_name(path.name + "-wal")


def _place(path: Path) -> tuple[tuple[int, int] | None, ...]:
    return tuple(_inode(file) for file in (path, wal_of(path)))


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # not there, or the disk doesn't tell: in either case nothing to rely on
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None
