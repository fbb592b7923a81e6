"""A transcript in a folder, written by real workers, and the ways in which its files get damaged."""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from actors.errors import NotFound
from actors.messages.base import Candidates, Message, Row, Rows, Statistics
from actors.messages.transcript_appender import (
    AppendEvents,
    AppendResult,
    EventDraft,
    GetEvent,
    SearchEvents,
    SessionHistory,
    TranscriptStatus,
)
from actors.settings import RoomSetup, TranscriptAppenderSettings
from actors.transcript_appender.catalogue import Book, Catalogue
from actors.transcript_appender.worker import TranscriptRoom
from tests.unit.actors.room_kit import ask, killed
from tests.worker_client import WorkerClient

WORKER = "actors.transcript_appender.worker"
IDENTITY = "d1"
PAGE = 4096
Damage = Callable[[Path], None]
Event = dict[str, Any]
Answer = TypeVar("Answer", bound=msgspec.Struct)


class Asks(Protocol):
    """Whoever can be asked: a worker, or a room in this process."""

    def call(self, message: Message, answer: type[Answer]) -> Answer:
        """Make a call and return its answer."""
        ...


def worker(
    folder: Path,
    *,
    acknowledged: int = 0,
    module: str = WORKER,
    window_s: int = 0,
    identity: str = IDENTITY,
    bytes_max: int = 1 << 30,
) -> WorkerClient:
    """Start a worker on a folder."""
    given = setup(folder, acknowledged=acknowledged, window_s=window_s, identity=identity, bytes_max=bytes_max)
    return WorkerClient(module, given)


def setup(
    folder: Path, *, acknowledged: int = 0, window_s: int = 0, identity: str = IDENTITY, bytes_max: int = 1 << 30
) -> RoomSetup:
    """Return what a worker on a folder is told."""
    limits = TranscriptAppenderSettings(duplicate_window_s=window_s, segment_bytes_max=bytes_max)
    return RoomSetup(directory=str(folder), identity=identity, acknowledged=acknowledged, transcript_appender=limits)


def draft(number: int, **members: Any) -> EventDraft:
    """Return an event whose content tells its number."""
    given = {"session_id": f"s{number % 3}", "actor": "user", "content": f"word{number} common {'x' * 300}"}
    return EventDraft(**{**given, "request_id": f"r{number}", "tags": ("t",), **members})


def append(client: Asks, *drafts: EventDraft) -> list[int]:
    """Append events in one message; return their seqs."""
    return [each.seq for each in client.call(AppendEvents(events=drafts), AppendResult).results]


def filled(folder: Path, count: int, *, indexed: bool = True, start: int = 0, acknowledged: int = 0) -> dict[str, int]:
    """Append `count` events, kill the worker; return request_id → seq of what was acknowledged."""
    client = worker(folder, acknowledged=acknowledged)
    seqs: dict[str, int] = {}
    for first in range(start, start + count, 20):
        numbers = range(first, min(first + 20, start + count))
        given = append(client, *(draft(number) for number in numbers))
        seqs.update(zip((f"r{number}" for number in numbers), given, strict=True))
    if indexed:
        assert found(client, f"word{start}").behind == 0
    killed(client)
    return seqs


def settle(path: Path) -> None:
    """Copy the WAL into the file, as a checkpoint before the damage would have."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def catalogue(folder: Path) -> Catalogue:
    """Read the catalogue."""
    book = Book(folder)
    assert book.load()
    return book.catalogue


def states(folder: Path) -> list[str]:
    """Return the state of each segment."""
    return [each.state for each in catalogue(folder).segments]


def found(client: Asks, query: str) -> Candidates:
    """Search."""
    return client.call(SearchEvents(query=query), Candidates)


def event(client: Asks, event_id: str) -> Event | None:
    """Get an event, None when there is none."""
    try:
        return msgspec.json.decode(client.call(GetEvent(event_id=event_id), Row).row, type=dict[str, Any])
    except NotFound:
        return None


def history(client: Asks, session_id: str, **members: Any) -> tuple[list[Event], Rows]:
    """Return a page of a session."""
    page = client.call(SessionHistory(**{"session_id": session_id, "limit": 500, **members}), Rows)
    return msgspec.json.decode(page.rows, type=list[dict[str, Any]]), page


def everything(client: Asks) -> dict[int, Event]:
    """Read all sessions, a few events at a time; return the events by seq."""
    events: dict[int, Event] = {}
    for session in range(3):
        after, more = 0, True
        while more:
            rows, page = history(client, f"s{session}", after_seq=after, limit=7)
            events.update({row["seq"]: row for row in rows})
            after, more = (rows[-1]["seq"] if rows else after), page.more
    return events


def status(client: Asks) -> dict[str, Any]:
    """Return the status."""
    return dict(client.call(TranscriptStatus(), Statistics).values)


def require_right(events: dict[int, Event], seqs: dict[str, int]) -> None:
    """Assert that every event that was read is one that was acknowledged, as it was."""
    by_seq = {seq: request_id for request_id, seq in seqs.items()}
    for seq, row in events.items():
        number = int(by_seq[seq][1:])
        written = draft(number)
        assert (row["content"], row["request_id"]) == (written.content, written.request_id)
        assert (row["session_id"], row["actor"], row["tags"]) == (written.session_id, written.actor, ["t"])
        assert row["content_hash"] == hashlib.sha256(written.content.encode()).hexdigest()


def digests(path: Path) -> dict[str, str]:
    """Return the hashes of a file and its WAL, as far as they hold anything: looking may leave an empty WAL."""
    files = (path, path.with_name(path.name + "-wal"))
    contents = {file.name: file.read_bytes() for file in files if file.exists()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if content}


# ---------------------------------------------------------------- without a process of its own


@contextmanager
def room(folder: Path, *, acknowledged: int = 0, bytes_max: int = 1 << 30) -> Iterator[TranscriptRoom]:
    """Open the transcript in this process, all three lanes, and copy what is left of damaged segments."""
    made = TranscriptRoom(setup(folder, acknowledged=acknowledged, bytes_max=bytes_max))
    try:
        for lane in dict.fromkeys(made.lanes.values()):
            made.open(lane)
        while made.idle("repair"):
            pass
        yield made
    finally:
        made.index.close()
        for shelf in (made._written, made._read, made._searched):
            shelf.close()
        made._salvage.close()
        for database in reversed(made._databases.values()):
            database.close()


class RoomClient:
    """Makes calls to a room in this process as one makes them to a worker."""

    def __init__(self, made: TranscriptRoom) -> None:
        self._room = made

    def call(self, message: Message, answer: type[Answer]) -> Answer:
        """Make a call."""
        return ask(self._room, message, answer)


# ---------------------------------------------------------------- damage


def zero(path: Path, start: int, length: int) -> None:
    """Overwrite a part of a file with zeros."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(min(length, path.stat().st_size - start)))


def zero_header(path: Path) -> None:
    """Lose the header."""
    zero(path, 0, 100)


def zero_first_page(path: Path) -> None:
    """Lose the page that names the tables."""
    zero(path, 0, PAGE)


def garble_middle_page(path: Path) -> None:
    """Lose a page of the table of events."""
    content = path.read_bytes()
    leaves = [
        at for at in range(PAGE, len(content), PAGE) if content[at] == 13 and b"common" in content[at : at + PAGE]
    ]
    with path.open("r+b") as file:
        file.seek(leaves[len(leaves) // 2])
        file.write(os.urandom(PAGE))


def garble_all_pages(path: Path) -> None:
    """Lose everything behind the first page, in the file that stays the same one."""
    with path.open("r+b") as file:
        file.seek(PAGE)
        file.write(os.urandom(path.stat().st_size - PAGE))


def garble_indexes(path: Path) -> None:
    """Lose the pages of the indexes, which nobody reads at the start."""
    content = path.read_bytes()
    with path.open("r+b") as file:
        for at in range(PAGE, len(content), PAGE):
            if content[at] == 10 and b"s1" in content[at : at + PAGE]:
                file.seek(at + 8)
                file.write(os.urandom(PAGE - 8))


def empty_an_index(path: Path) -> None:
    """Lose the entries of the index of sessions, in a way that leaves a valid page: that of another, empty index."""
    connection = sqlite3.connect(path)
    roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema"))
    connection.close()
    content = path.read_bytes()
    empty = (roots["recent_by_seen"] - 1) * PAGE
    with path.open("r+b") as file:
        file.seek((roots["sessions_by_last_seq"] - 1) * PAGE)
        file.write(content[empty : empty + PAGE])


def garble_last_page(path: Path) -> None:
    """Lose the last page."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - PAGE)
        file.write(b"\xff" * PAGE)


def truncate(path: Path) -> None:
    """Lose the second half."""
    os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE)


def truncate_to_nothing(path: Path) -> None:
    """Lose everything but the name."""
    os.truncate(path, 0)


def delete(path: Path) -> None:
    """Lose the file and its WAL."""
    for file in path.parent.glob(path.name + "*"):
        file.unlink()


def flip_bit_of_content(path: Path) -> None:
    """Change one letter of an event, which SQLite's own checks don't see."""
    content = path.read_bytes()
    at = content.index(b"word7 common") + 3
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))


def wal_of(path: Path) -> Path:
    """Return the WAL of a segment."""
    return path.with_name(path.name + "-wal")


def zero_wal(path: Path) -> None:
    """Lose the WAL's content."""
    zero(wal_of(path), 0, wal_of(path).stat().st_size)


def truncate_wal(path: Path) -> None:
    """Lose the WAL within its second frame."""
    os.truncate(wal_of(path), 32 + 24 + PAGE + 100)


def delete_wal(path: Path) -> None:
    """Lose the WAL."""
    wal_of(path).unlink()
