"""One file of a backup: how it is copied while it is written to, taken over from the backup before, and looked at.

A database is copied from one read transaction, so it is as it was at one moment, in short steps: each is made durable
before the next, and followed by a rest of twice its length, as writers share the disk and the CPU with it. Writers are
never locked out. What they write meanwhile stays in the WAL, so the rests end when that has become large.

A copy that has been made is a closed file without a WAL, opened only to be read, never changed (`immutable`).
"""

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from actors.errors import BulkheadError, Interrupted, Quarantined
from actors.messages.backup import BackupFile
from actors.sql.database import FileKind, file_bytes, fsync_directory, open_reader, require_version, wal_bytes

PIECE_BYTES = 512 * 1024
_PAGE_BYTES = 4096
_RESTS = 2.0  # of a step
_REST_S_MAX = 0.1
_PROGRESS_STEPS = 10_000


class Pace:
    """When the next step may be taken: after a rest, and not at all once the work is to end."""

    def __init__(self, check: Callable[[], None], hurry: Callable[[], bool] = lambda: False) -> None:
        """`check` raises what ends the work; `hurry` says that there is no time to rest."""
        self.check = check
        self._hurry = hurry
        self._since = time.monotonic()

    def step(self) -> None:
        """End a step and rest."""
        self.check()
        if not self._hurry():
            time.sleep(min(_REST_S_MAX, _RESTS * (time.monotonic() - self._since)))
        self._since = time.monotonic()


def copy_database(source: Path, kind: FileKind, target: Path, check: Callable[[], None], wal_bytes_max: int) -> None:
    """Copy a database of this process, its WAL included, as it is now. Durable on return; the target must be new."""
    pace = Pace(check, hurry=lambda: wal_bytes(source) > wal_bytes_max)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(open_reader(source, kind)) as reading:
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # from here on it is one moment
        _copy_pages(reading, target, pace)
        reading.execute("ROLLBACK")
    fsync_directory(target.parent)


def _copy_pages(reading: sqlite3.Connection, target: Path, pace: Pace) -> None:
    fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:

        def stepped(status: int, remaining: int, total: int) -> None:
            if remaining:
                os.fsync(fd)
                pace.step()

        with closing(sqlite3.connect(target, isolation_level=None)) as writing:
            writing.execute("PRAGMA journal_mode = OFF")
            writing.execute("PRAGMA synchronous = OFF")
            reading.backup(writing, pages=PIECE_BYTES // _PAGE_BYTES, progress=stepped, sleep=0)
        os.fsync(fd)
    finally:
        os.close(fd)


def copy_raw(source: Path, target: Path, pace: Pace) -> None:
    """Copy the bytes of a file that nobody writes to and no connection of this process has open. Durable on return."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with source.open("rb") as reading, target.open("xb") as writing:
        os.fchmod(writing.fileno(), 0o600)
        while piece := reading.read(PIECE_BYTES):
            writing.write(piece)
            pace.step()
        writing.flush()
        os.fsync(writing.fileno())
    fsync_directory(target.parent)


def link(source: Path, target: Path) -> bool:
    """Give a file of an earlier backup a second name; False where the file system has no such thing."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        return False
    fsync_directory(target.parent)
    return True


def origin_of(path: Path) -> str:
    """Return what changes with the content of a file; empty when it has a WAL, so that it can change unseen."""
    if wal_bytes(path):
        return ""
    found = path.stat()
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


# ---------------------------------------------------------------- looking


def describe_raw(root: Path, path: Path, pace: Pace) -> BackupFile:
    """Return what the manifest says of a file whose content is nobody's business."""
    name = path.relative_to(root).as_posix()
    return BackupFile(path=name, kind="raw", bytes=file_bytes(path), sha256=hash_of(path, pace))


def describe_database(
    root: Path,
    path: Path,
    kind: FileKind,
    pace: Pace,
    *,
    origin: str = "",
    look: Callable[[sqlite3.Connection], object] = lambda connection: None,
) -> BackupFile:
    """Return what the manifest says of a copy, after SQLite's own check; `look` is given the connection as well.

    Raises Quarantined when the copy is damaged, as then is what it is a copy of.
    """
    with closing(open_copy(path, pace.check)) as connection:
        require_version(connection, path, kind)
        require_whole(connection, path)
        rows = count_rows(connection)
        (schema,) = connection.execute("PRAGMA user_version").fetchone()
        look(connection)
    return BackupFile(
        path=path.relative_to(root).as_posix(),
        kind="database",
        bytes=file_bytes(path),
        sha256=hash_of(path, pace),
        rows=rows,
        schema=schema,
        origin=origin,
    )


def open_copy(path: Path, check: Callable[[], None]) -> sqlite3.Connection:
    """Open a finished copy to read from; nothing is written beside it. `check` ends a long statement by raising."""
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)

    def should_stop() -> int:
        try:
            check()
        except BulkheadError:
            return 1
        return 0

    connection.set_progress_handler(should_stop, _PROGRESS_STEPS)
    return connection


def require_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Raise Quarantined unless SQLite finds the file whole, Interrupted when there was no time to look."""
    try:
        (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            raise Interrupted(f"looking at {path.name} was stopped") from error
        finding = str(error)
    except sqlite3.DatabaseError as error:
        finding = str(error)
    if finding != "ok":
        raise Quarantined(f"{path.parent.name}/{path.name} is damaged: {finding}", hint="earlier backups are kept")


def count_rows(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many rows each table has."""
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    counts = {}
    for (name,) in names.fetchall():
        (counts[name],) = connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()
    return counts


def hash_of(path: Path, pace: Pace) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            pace.step()
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Delete a file that was begun and not finished."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
