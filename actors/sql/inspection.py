"""A look at a file of the truth before anybody may write to it: is it whole, is it ours, is its WAL what we left?

Everything here reads. It comes before the writing connection because that one can't look without touching: closing it
copies the WAL into the file, which is the last thing a damaged file needs.

What SQLite itself does not notice is looked at as well. A WAL with a broken header counts as empty for it, and one
that is broken in the middle as shorter; both silently take acknowledged commits away. Each commit is synced before
the next begins, and the header of a new WAL before its first frame. So a broken header in front of frames is damage,
and so are two commits in an unbroken chain behind the place where SQLite had to stop: a lone one may be what a power
cut left of a commit that nobody was told of, but the second was only begun when the first had been acknowledged.
"""

import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from actors.errors import Quarantined
from actors.sql.database import (
    FileKind,
    check_quickly,
    database_files,
    file_bytes,
    is_fresh,
    is_refusal,
    open_reader,
    opening_error,
    require_ours,
    retry_busy,
    wal_of,
)

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682  # with its last bit set: checksums over big-endian words
_VERSION = 3007000
# In the WAL index (-shm), in the byte order of the machine: whether it is initialised, the last frame of the chain,
# the salts of the WAL that it is about (copied as they stand in the WAL).
_INDEX_BYTES = 48
_INDEX_LAST_FRAME = struct.Struct("=I")
_INDEX_LAST_FRAME_AT = 16
_INDEX_SALTS_AT = 32


def inspect(path: Path, kind: FileKind, verify: Callable[[sqlite3.Connection], None]) -> bool:
    """Raise Quarantined when the file must not be written to, NotOurs when it is not for this data directory.

    `verify` is given a connection in a read transaction, for what only the room can check. Neither the file nor its
    WAL is changed. Returns whether the file could be looked at: when the system doesn't let us, or when there is none,
    the opening of the writer finds out what is the matter.
    """
    _require_wal_header(path, kind)
    if file_bytes(path) == 0:
        _require_no_wal(path, kind)
        return False
    try:
        connection = open_reader(path, kind, lenient=True)
        try:
            retry_busy(lambda: _look(connection, path, kind, verify))
        finally:
            connection.close()
    except sqlite3.Error as error:
        if is_refusal(error):
            return False
        raise _finding(error, path, kind) from error
    _require_whole_wal(path, kind)
    return True


def _finding(error: sqlite3.Error, path: Path, kind: FileKind) -> Exception:
    """Return what an error of looking means; one that has no name in the house speaks of a schema that is not ours."""
    known = opening_error(error, path, kind)
    if known is not error:
        return known
    return Quarantined(
        f"{kind.name} database {str(path)!r} is damaged: {error}",
        hint="the file is kept as it is; restore it from a backup",
    )


def _look(
    connection: sqlite3.Connection, path: Path, kind: FileKind, verify: Callable[[sqlite3.Connection], None]
) -> None:
    if is_fresh(connection):
        return
    require_ours(connection, path, kind)
    check_quickly(connection, path, kind)
    connection.execute("BEGIN")
    try:
        verify(connection)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


# ---------------------------------------------------------------- the WAL


class _Wal(NamedTuple):
    """What the header of a WAL says."""

    page_bytes: int
    salts: tuple[int, int]
    big: bool


class _Frame(NamedTuple):
    """What a frame says of itself: whether it ends a commit, to which WAL it belongs, its checksum; and its bytes."""

    is_commit: bool
    salts: tuple[int, int]
    checksum: tuple[int, int]
    summed: bytes


def _require_wal_header(path: Path, kind: FileKind) -> None:
    """Raise Quarantined when there are frames behind a header that is none."""
    wal = wal_of(path)
    if file_bytes(wal) > _HEADER.size and _read_header(wal) is None:
        raise Quarantined(
            f"WAL of {kind.name} database {str(path)!r} is damaged: it holds {file_bytes(wal)} bytes behind a header "
            "that is none",
            hint="the file is kept as it is; restore it from a backup",
        )


def _require_no_wal(path: Path, kind: FileKind) -> None:
    """Raise Quarantined when the WAL is all that is left: SQLite would delete it, as it never lets things come so."""
    if file_bytes(wal_of(path)) > _HEADER.size:
        raise Quarantined(
            f"{kind.name} database {str(path)!r} is empty or gone, but its WAL holds {file_bytes(wal_of(path))} bytes",
            hint="the files are kept as they are; restore the database from a backup",
        )


def _require_whole_wal(path: Path, kind: FileKind) -> None:
    """Raise Quarantined when acknowledged commits stand behind the frame where SQLite has stopped reading."""
    wal, index = wal_of(path), database_files(path)[2]
    if file_bytes(wal) <= _HEADER.size:
        return
    header = _read_header(wal)
    last = None if header is None else _last_frame(index, header)
    if header is not None and last is not None and _has_lost_commits(_frames_after(wal, header, last), header):
        raise Quarantined(
            f"WAL of {kind.name} database {str(path)!r} is damaged after frame {last}: commits follow that can't be "
            "read",
            hint="the file is kept as it is; restore it from a backup",
        )


def _read_header(wal: Path) -> _Wal | None:
    """Return what the header says, None when it is not one that SQLite would accept."""
    with wal.open("rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    magic, version, page_bytes, _, salt_1, salt_2, sum_1, sum_2 = _HEADER.unpack(head)
    big = bool(magic & 1)
    if magic & ~1 != _MAGIC or version != _VERSION or _checksum(head[:24], (0, 0), big=big) != (sum_1, sum_2):
        return None
    return _Wal(page_bytes, (salt_1, salt_2), big)


def _checksum(data: bytes, before: tuple[int, int], *, big: bool) -> tuple[int, int]:
    words = struct.unpack(f"{'>' if big else '<'}{len(data) // 4}I", data)
    one, two = before
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two


def _last_frame(index: Path, wal: _Wal) -> int | None:
    """Return the last frame that SQLite has found, None when its index does not tell about this WAL.

    Our connection has made the index anew a moment ago. Opening the file here drops the locks that this process holds
    on it, which is why the connection is closed by now.
    """
    try:
        with index.open("rb") as file:
            head = file.read(_INDEX_BYTES)
    except OSError:
        return None
    if len(head) < _INDEX_BYTES or head[_INDEX_SALTS_AT : _INDEX_SALTS_AT + 8] != struct.pack(">2I", *wal.salts):
        return None
    (last,) = _INDEX_LAST_FRAME.unpack_from(head, _INDEX_LAST_FRAME_AT)
    return int(last)


def _frames_after(wal: Path, header: _Wal, last: int) -> Iterator[_Frame]:
    with wal.open("rb") as file:
        file.seek(_HEADER.size + last * (_FRAME.size + header.page_bytes))
        while len(data := file.read(_FRAME.size + header.page_bytes)) == _FRAME.size + header.page_bytes:
            _, pages, salt_1, salt_2, sum_1, sum_2 = _FRAME.unpack_from(data)
            yield _Frame(pages > 0, (salt_1, salt_2), (sum_1, sum_2), data[:8] + data[_FRAME.size :])


def _has_lost_commits(frames: Iterator[_Frame], header: _Wal) -> bool:
    """Say whether one commit follows another in an unbroken chain; frames of an earlier WAL have other salts."""
    before: _Frame | None = None  # the last frame of a chain that begins with a commit
    for frame in frames:
        if before is not None and (
            frame.salts != header.salts or frame.checksum != _checksum(frame.summed, before.checksum, big=header.big)
        ):
            before = None
        if frame.is_commit and frame.salts == header.salts:
            if before is not None:
                return True
            before = frame
        elif before is not None:
            before = frame
    return False
