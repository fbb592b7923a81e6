"""Both rooms of a truth in one data directory, as a test of backups needs them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from actors.core_writer.worker import CoreRoom
from actors.messages.backup import BackedUp, BackUp, BackupBegun, BeginBackup, FinishBackup, ListBackups, VerifyBackup
from actors.messages.base import Row, Rows
from actors.messages.core_writer import PutUnit
from actors.settings import BackupSettings
from actors.transcript_appender.worker import TranscriptRoom
from supervisor.version import VERSION
from tests.unit.actors.room_kit import ask, core, say, transcript

Json = dict[str, Any]


@contextmanager
def truth(data: Path, *, identity: str = "mine", **backup: Any) -> Iterator[tuple[CoreRoom, TranscriptRoom]]:
    """Open both rooms."""
    settings = BackupSettings(free_bytes_min=0, **backup)
    with (
        core(data / "core_writer", identity=identity, backup=settings) as units,
        transcript(data / "transcript_appender", identity=identity, backup=settings) as events,
    ):
        yield units, events


def put(room: CoreRoom, unit_id: str, text: str = "a text") -> None:
    """Write a version of a unit."""
    ask(room, PutUnit(unit_id=unit_id, type="plan", scope="user", text=text), Row)


def fill(units: CoreRoom, events: TranscriptRoom, count: int, *, first: int = 0) -> None:
    """Write so many units and events."""
    for number in range(first, first + count):
        put(units, f"u{number}", f"text {number}")
        say(events, f"content {number}")


def copied(units: CoreRoom, events: TranscriptRoom, name: str) -> tuple[BackedUp, BackedUp]:
    """Let both rooms copy themselves, core first."""
    return ask(units, BackUp(backup=name), BackedUp), ask(events, BackUp(backup=name), BackedUp)


def made(units: CoreRoom, events: TranscriptRoom, *, kept: int = 7, request_id: str | None = None) -> Json:
    """Make a backup, as the daemon does, and return what a client is told."""
    name = ask(units, BeginBackup(request_id=request_id), BackupBegun).backup
    parts = copied(units, events, name)
    order = FinishBackup(backup=name, parts=parts, program=VERSION, kept=kept, request_id=request_id)
    return decoded(ask(units, order, Row))


def listed(units: CoreRoom, **members: Any) -> list[Json]:
    """Return the list of the backups."""
    rows = ask(units, ListBackups(**{"limit": 100, **members}), Rows)
    found: list[Json] = msgspec.json.decode(rows.rows)
    return found


def verified(units: CoreRoom, name: str) -> Json:
    """Verify a backup."""
    return decoded(ask(units, VerifyBackup(backup=name), Row))


def decoded(row: Row) -> Json:
    """Return a row as a client sees it."""
    found: Json = msgspec.json.decode(row.row)
    return found
