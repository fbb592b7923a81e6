"""Looking at the file of a segment without changing it: is it what was written, and how far can it be read?

Damage is told from trouble. What the file says of itself is a finding. A disk that can't be read at the moment, or a
folder that may not be read, is raised (StoreBroken, StoreBusy) and says nothing against the file; a file of another
data directory or program version is raised as NotOurs.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from actors.errors import BulkheadError, Quarantined, StoreBroken
from actors.sql import meta
from actors.sql.database import (
    Database,
    FileKind,
    NotOurs,
    Until,
    file_bytes,
    open_reader,
    require_version,
    wal_bytes,
)
from actors.sql.inspection import inspect
from actors.transcript_appender import store
from actors.transcript_appender.catalogue import SEQ_MAX, Suspicion
from actors.transcript_appender.layout import expected_layout, read_layout
from actors.transcript_appender.soundness import is_sound

TAIL_ROWS = 1000
# No event is smaller: its record alone is 70 bytes (17 of types, 32 of hash, 21 of the shortest texts). Measured with
# the indexes: 122 bytes for an empty event, 445 for one of 200 characters.
EVENT_BYTES_MIN = 64
# How often damage may be met without a check that finds it, before the file is taken for damaged all the same: a
# process that leaves because of it again and again would take the appends along.
DOUBTS_MAX = 2
# How long a file may be looked at when something speaks against it; a larger one is taken for damaged.
_CLOSE_LOOK_S = 5.0
_HEADER_BYTES = 100
_PAGES_AT = 28
_PAGES_MAX = 2**26
_PAGE_BYTES = 4096
_MAGIC = b"SQLite format 3\0"
_NAMES_SHOWN = 5
# What reading a damaged file may raise. The second: the module sqlite3 can't put an error into words that quotes bytes
# of the file (a malformed schema) which are no text.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)


class Expected(NamedTuple):
    """What the file of a segment must be.

    `floor`: an event up to which it must reach. `schema`: the newest schema that a program has written here, None when
    that is not known, so that a newer one must be believed. `ours`: the catalogue is of this data directory, so a file
    with another identity was put here or is garbled. `doubts`: how many suspicions no check has confirmed.
    """

    identity: str
    first_seq: int
    floor: int
    schema: int | None = None
    ours: bool = False
    suspicion: Suspicion | None = None
    doubts: int = 0


class Finding(NamedTuple):
    """`damage`: what is wrong, None for a healthy file. `last_seq`: the highest readable one (None: not readable).
    `clock`: the last time that it gave, µs; 0 when that can't be read."""

    damage: str | None
    last_seq: int | None = None
    clock: int = 0


class Identified(NamedTuple):
    """What a file says of itself."""

    identity: str | None
    first_seq: int
    last_seq: int
    restored: bool


def examine(path: Path, kind: FileKind, expected: Expected) -> Finding:
    """Look at a segment. Neither the file nor its WAL is changed."""
    if not path.exists():
        return Finding(f"{path.name} is missing")
    if file_bytes(path) == 0:
        return Finding(f"{path.name} is empty")
    found: list[Finding] = []
    try:
        if not _inspect(path, kind, lambda connection: found.append(_verify(connection, path, kind, expected))):
            return Finding(None)  # we were not let in, which is nothing against the file; its opening will say why
    except NotOurs as error:
        if expected.schema is None or not _claims_newer_schema(path, kind) or expected.schema > kind.user_version:
            raise
        found = [Finding(error.message)]
    except Quarantined as error:
        found = [Finding(error.message)]
    finding = found[0] if found else Finding(f"{path.name} holds no transcript")
    return finding if finding.damage is None else _read_what_is_left(path, kind, finding.damage, expected)


def identify(path: Path, kind: FileKind) -> Identified:
    """Return what a file says of itself, after a look at all of it; raise Quarantined when it is damaged."""
    if file_bytes(path) == 0:
        raise Quarantined(f"{path.name} is missing or empty")
    found: list[Identified] = []
    if not _inspect(path, kind, lambda connection: found.append(_identify(connection, path, kind))):
        raise StoreBroken(f"{str(path)!r} can't be opened for reading", outcome="not_executed")
    if not found:
        raise Quarantined(f"{path.name} holds no transcript")
    return found[0]


def _inspect(path: Path, kind: FileKind, verify: Callable[[sqlite3.Connection], None]) -> bool:
    with findings(path):
        return inspect(path, kind, verify)


def claimed_first_seq(path: Path, kind: FileKind) -> int | None:
    """Return where a file says that it begins, None when it can't be read."""
    try:
        connection = open_reader(path, kind, lenient=True)
        try:
            return _first_seq(connection)
        finally:
            connection.close()
    except (*UNREADABLE, BulkheadError):
        return None


def given_out_max(path: Path, last_seq: int | None, first_seq: int) -> int:
    """Return a seq that no event of this file can lie above, from what is left of it.

    When the tail can't be read, the size of the file and its WAL bounds the number of events in it; a file that was
    cut short may still say in its header how long it was.
    """
    if last_seq is not None:
        return last_seq
    size = max(file_bytes(path), _pages_in_header(path) * _PAGE_BYTES)
    return first_seq + (size + wal_bytes(path)) // EVENT_BYTES_MIN


def is_damage(error: BaseException | None) -> bool:
    """Say whether an error of SQLite speaks of the content of the file, and not of the disk or of the moment."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or is_undecodable(error)


def is_undecodable(error: BaseException | None) -> bool:
    """Say whether an error means that something holds no text any more. Its message quotes that: don't pass it on."""
    if isinstance(error, UnicodeDecodeError):
        return True
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")


def suspicion_of(number: int, error: BaseException) -> Suspicion:
    """Return what to leave the next process about damage that was met in a segment."""
    if is_undecodable(error):
        return Suspicion(number=number, reason="a cell holds no text", thorough=True)
    return Suspicion(number=number, reason=str(error))


@contextmanager
def findings(path: Path) -> Iterator[None]:
    """Raise Quarantined for what SQLite says of the content of a file; its other errors pass.

    An error that has no name among the operating errors is one of the content too: a table that is not there.
    """
    try:
        yield
    except UNREADABLE as error:
        unnamed = getattr(error, "sqlite_errorname", None) in (None, "SQLITE_ERROR")
        if is_damage(error) or unnamed:
            what = "a cell holds no text" if is_undecodable(error) else str(error)
            raise Quarantined(f"{path.name} can't be read: {what}") from error
        raise


# ---------------------------------------------------------------- what must hold


def _verify(connection: sqlite3.Connection, path: Path, kind: FileKind, expected: Expected) -> Finding:
    with findings(path):
        _require_layout(connection, path, kind)
        _require_identity(connection, path, expected)
        first = _first_seq(connection)
        if first != expected.first_seq:
            raise Quarantined(f"{path.name} begins at event {first}, the catalogue says {expected.first_seq}")
        if expected.suspicion is not None:
            _look_closely(connection, path, expected.suspicion, expected.doubts)
        last = _last_seq(connection, first)
        _require_tail(connection, path, first, last)
        if last < expected.floor:
            raise Quarantined(f"{path.name} ends at event {last}, but events up to {expected.floor} were acknowledged")
        return Finding(None, last, _clock(connection))


def _require_layout(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    found, expected = (layout.definitions for layout in (read_layout(connection), expected_layout(kind.schema)))
    different = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if different:
        raise Quarantined(f"{path.name} has another schema than was written: {different[:_NAMES_SHOWN]}")


def _require_identity(connection: sqlite3.Connection, path: Path, expected: Expected) -> None:
    try:
        if expected.identity:
            meta.require_identity(connection, expected.identity, repr(str(path)))
    except NotOurs as error:
        if expected.ours:
            raise Quarantined(error.message) from error
        raise


def _look_closely(connection: sqlite3.Connection, path: Path, suspicion: Suspicion, doubts: int) -> None:
    """Look at what a process before met. Indexes are compared with their tables, which a quick check doesn't do."""
    if doubts >= DOUBTS_MAX:
        raise Quarantined(f"{path.name} is believed to be damaged, although no check finds it: {suspicion.reason}")
    if suspicion.seq is not None:
        event = store.event_at(connection, suspicion.seq)
        if event is not None and not is_sound(event):
            raise Quarantined(f"event {suspicion.seq} of {path.name} is not what was written")
        return
    try:
        with Database(connection, path).during(Until.after(_CLOSE_LOOK_S), "the check failed"):
            (finding,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if finding != "ok":
                raise Quarantined(f"{path.name} is damaged: {finding}")
            if suspicion.thorough:
                _read_all(connection, path)
    except BulkheadError as error:
        if isinstance(error, Quarantined):
            raise
        raise Quarantined(f"{suspicion.reason}; {path.name} is too large to be checked at the start") from error


def _read_all(connection: sqlite3.Connection, path: Path) -> None:
    """Read every cell, and look whether it is what was written."""
    with findings(path):
        for table in ("meta", "sessions", "requests"):
            for _ in connection.execute(f"SELECT * FROM {table}"):
                pass
        for event in store.events_between(connection, 0, SEQ_MAX, SEQ_MAX):
            if not is_sound(event):
                raise Quarantined(f"event {event.seq} of {path.name} is not what was written")


def _require_tail(connection: sqlite3.Connection, path: Path, first: int, last: int) -> None:
    expected, present = min(last - first + 1, TAIL_ROWS), store.count_last(connection, TAIL_ROWS)
    if present != expected:
        raise Quarantined(f"{path.name} has {present} of its last {expected} events")


def _identify(connection: sqlite3.Connection, path: Path, kind: FileKind) -> Identified:
    with findings(path):
        _require_layout(connection, path, kind)
        first = _first_seq(connection)
        last = _last_seq(connection, first)
        _require_tail(connection, path, first, last)
        return Identified(
            identity=meta.read_text(connection, "identity"),
            first_seq=first,
            last_seq=last,
            restored=meta.read_counter(connection, store.RESTORED) > 0,
        )


# ---------------------------------------------------------------- what is left


def _read_what_is_left(path: Path, kind: FileKind, damage: str, expected: Expected) -> Finding:
    """Return the damage with the last seq and time that can be read in spite of it."""
    try:
        connection = open_reader(path, kind, lenient=True)
        try:
            return Finding(damage, _last_seq(connection, expected.first_seq), _clock(connection))
        finally:
            connection.close()
    except (*UNREADABLE, BulkheadError):
        return Finding(damage)


def _claims_newer_schema(path: Path, kind: FileKind) -> bool:
    try:
        connection = open_reader(path, kind, lenient=True)
        try:
            require_version(connection, path, kind)
        finally:
            connection.close()
    except NotOurs:
        return True
    except (*UNREADABLE, BulkheadError):
        return False
    return False


def _first_seq(connection: sqlite3.Connection) -> int:
    """Return where the segment begins; the first one of a data directory need not say so."""
    return meta.read_counter(connection, store.FIRST_SEQ) or 1


def _last_seq(connection: sqlite3.Connection, first_seq: int) -> int:
    return max(store.last_seq(connection), first_seq - 1)


def _clock(connection: sqlite3.Connection) -> int:
    return meta.read_counter(connection, store.CLOCK)


def _pages_in_header(path: Path) -> int:
    """Return how many pages the header claims, 0 when that can't be believed."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:
        return 0
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        return 0
    pages = int.from_bytes(header[_PAGES_AT : _PAGES_AT + 4], "big")
    return pages if pages < _PAGES_MAX else 0
