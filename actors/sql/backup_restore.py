"""A data directory made of a backup: complete and durable, with the notes by which its rooms go on above its numbers.

Used by the process that restores, while no daemon runs: it is the only one that has any of these files open. Nothing
here touches the directory that is to be replaced but to read how far its numbers went.
"""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from actors.errors import Quarantined
from actors.messages.backup import BackupFile
from actors.sql import meta
from actors.sql.adopting import NOTE, Note
from actors.sql.backup_files import PIECE_BYTES
from actors.sql.backup_folder import IDENTITY, Manifest
from actors.sql.database import fsync_directory

# How far numbers may have gone after the backup, where nobody knows: so that no two things ever have the same.
SPARE = 1_000_000
SPARE_GENERATIONS = 10_000
CORE, TRANSCRIPT = "core_writer", "transcript_appender"

Progress = Callable[[str, int, int], None]  # the file, bytes done, bytes in all


def make_directory(backup: Path, manifest: Manifest, target: Path, before: Mapping[str, int], told: Progress) -> None:
    """Fill an empty folder with what is in a backup. Durable on return but for its own name.

    Raises Quarantined when a file is not what the manifest says, OSError as the disk has it.
    """
    done = 0
    for file in manifest.files:
        told(file.path, done, manifest.bytes)
        _copy(backup, file, target)
        done += file.bytes
    _write(target / IDENTITY, manifest.identity.encode() + b"\n")
    core = _core_counters(target / CORE / "core.db")
    notes = {
        CORE: {
            "core_seq": _beyond(manifest.core_seq, before.get("core_seq", 0), SPARE),
            "sources_seq": _beyond(core.get("sources_seq", 0), before.get("sources_seq", 0), SPARE),
            "generation": _beyond(core.get("generation", 0), before.get("generation", 0), SPARE_GENERATIONS),
        },
        TRANSCRIPT: {"seq": _beyond(manifest.event_seq, before.get("seq", 0), SPARE)},
    }
    for room, given_out in notes.items():
        _write(target / room / NOTE, msgspec.json.encode(Note(given_out=given_out)))
        fsync_directory(target / room)
    fsync_directory(target)


def numbers_of(data: Path) -> dict[str, int]:
    """Return how far the numbers of a data directory went, as far as it can be read: it may be damaged or empty."""
    found = dict(_core_counters(data / CORE / "core.db"))
    room = data / TRANSCRIPT
    found["seq"] = max((_last_seq(path) for path in room.glob("[0-9]*.db")), default=0)
    return found


def _beyond(here: int, before: int, spare: int) -> int:
    """Return a round number that shows where it comes from, above both by at least the spare."""
    return (max(here, before) // spare + 2) * spare


def _copy(backup: Path, file: BackupFile, target: Path) -> None:
    path = target / file.path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with (backup / file.path).open("rb") as reading, path.open("xb") as writing:
        os.fchmod(writing.fileno(), 0o600)
        while piece := reading.read(PIECE_BYTES):
            digest.update(piece)
            writing.write(piece)
        writing.flush()
        os.fsync(writing.fileno())
    if digest.hexdigest() != file.sha256:
        raise Quarantined(f"backup {backup.name!r} is damaged: {file.path} does not match its hash")


def _core_counters(path: Path) -> dict[str, int]:
    with suppress(sqlite3.Error, OSError), closing(_readable(path)) as connection:
        return {name: value for name, value in meta.read_counters(connection).items() if value >= 0}
    return {}


def _last_seq(path: Path) -> int:
    with suppress(sqlite3.Error, OSError), closing(_readable(path)) as connection:
        (first,) = connection.execute("SELECT coalesce(max(value), 1) FROM meta WHERE name = 'first_seq'").fetchone()
        (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
        return max(int(first) - 1, int(last))
    return 0


def _readable(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, isolation_level=None)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
