"""A room of the truth opened in the test's own process, so that a test may look into its files and break them."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from actors.child import CallContext, _Child
from actors.core_writer.worker import CoreRoom
from actors.frames import Crash, FrameSplitter, Setup, encode_frame, to_parent_decoder
from actors.messages.base import Candidates, Filters, Message
from actors.messages.transcript_appender import AppendEvents, AppendResult, EventDraft, SearchEvents
from actors.settings import RoomSetup
from actors.sql.truth_room import TruthRoom
from actors.transcript_appender.worker import TranscriptRoom
from tests.worker_client import ROOT, WorkerClient

Answer = TypeVar("Answer", bound=msgspec.Struct)


class NoParent:
    """Takes the reports of a call that nobody waits for."""

    def send(self, frame: object) -> None:
        """Drop a report."""


def call_within(seconds: float) -> CallContext:
    """Return the context of a call with a deadline."""
    return CallContext(1, time.monotonic_ns() + int(seconds * 1e9), cast(_Child, NoParent()))


def ask(room: TruthRoom, message: Message, answer: type[Answer], *, seconds: float = 60) -> Answer:
    """Make a call on the lane of the message, as the worker's loop does."""
    found = room.handle(message, call_within(seconds))
    return msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=answer)


@contextmanager
def opened(room: TruthRoom) -> Iterator[TruthRoom]:
    """Open all lanes, and close the connections at the end (a worker leaves that to the end of its process)."""
    try:
        for lane in ("write", "read", "search"):
            room.open(lane)
        yield room
    finally:
        room.index.close()
        for database in reversed(room._databases.values()):
            database.close()


@contextmanager
def transcript(folder: Path, **settings: object) -> Iterator[TranscriptRoom]:
    """Open the transcript in a folder."""
    setup = msgspec.structs.replace(RoomSetup(directory=str(folder)), **settings)
    with opened(TranscriptRoom(setup)) as room:
        assert isinstance(room, TranscriptRoom)
        yield room


@contextmanager
def core(folder: Path, **settings: object) -> Iterator[CoreRoom]:
    """Open core in a folder."""
    setup = msgspec.structs.replace(RoomSetup(directory=str(folder)), **settings)
    with opened(CoreRoom(setup)) as room:
        assert isinstance(room, CoreRoom)
        yield room


def say(room: TruthRoom, *contents: str, session_id: str = "s", tenant: str = "default") -> AppendResult:
    """Append a user's messages."""
    events = tuple(EventDraft(session_id=session_id, actor="user", content=content) for content in contents)
    return ask(room, AppendEvents(events=events, tenant=tenant), AppendResult)


def found_seqs(room: TruthRoom, query: str, *, filters: Filters | None = None, tenant: str = "default") -> list[int]:
    """Search events and return the seqs of the hits; nothing may be behind."""
    message = SearchEvents(query=query, filters=filters or Filters(), tenant=tenant)
    candidates = ask(room, message, Candidates)
    assert candidates.behind == 0
    return [candidate.seq for candidate in candidates.found]


def rows_of(path: Path, query: str) -> list[tuple[object, ...]]:
    """Read a database from outside."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def killed(client: WorkerClient) -> None:
    """SIGKILL a worker and close its pipes."""
    client.kill()
    for pipe in (client.process.stdin, client.process.stdout):
        assert pipe is not None
        pipe.close()


def refused_start(module: str, setup: RoomSetup) -> Crash:
    """Start a worker that will not get ready; return what it says when it leaves."""
    frame = Setup(module, 1, msgspec.Raw(msgspec.msgpack.encode(setup)), 200, 0, False, 0)
    splitter = FrameSplitter()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(encode_frame(frame))
        process.stdin.flush()
        while data := os.read(process.stdout.fileno(), 1 << 16):
            for body in splitter.feed(data):
                found = to_parent_decoder.decode(body)
                if isinstance(found, Crash):
                    return found
                process.kill()
    raise AssertionError("the worker left without a word")
