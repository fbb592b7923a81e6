"""Putting a new database in the place of another one, so that SIGKILL at any step leaves the old one or the new one.

A database is two files: a WAL of the old one beside the new one would be applied to it. One rename can't replace both,
so the intention is written down first. From then on the new one counts, and whoever opens the room next completes
what is missing (`finish`); every step may be done twice.

The old files are kept under `damaged-<UTC stamp>/`. At no moment is there no file under the name of the database.
"""

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from actors.sql.database import database_files, fsync_directory, remove_database, wal_of

INTENTION = "RESTORE"
WORK_PREFIX = "restore-"
DAMAGED_PREFIX = "damaged-"
_DRAFT = INTENTION + ".tmp"


class Intention(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, as names within the room."""

    database: str
    new: str  # the folder that holds the new database
    damaged: str  # the folder for the old one
    derived: tuple[str, ...] = ()  # databases that are made from it, to be deleted


def stamp() -> str:
    """Return the time as it stands in the names of folders."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def begin(room: Path, intention: Intention) -> None:
    """Put the new database into its place. It must be whole, closed and synced; it is in place on return."""
    fsync_directory(room / intention.new)
    draft = room / _DRAFT
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(intention))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(room / INTENTION)
    fsync_directory(room)
    finish(room)


def finish(room: Path) -> bool:
    """Complete an exchange that was begun; return whether there was one. No connection may be open in the room."""
    note = room / INTENTION
    if not note.exists():
        return False
    intention = msgspec.json.decode(note.read_bytes(), type=Intention)
    path, new = room / intention.database, room / intention.new / intention.database
    if new.exists():
        _keep(path, room / intention.damaged)
        new.replace(path)
    for name in intention.derived:
        remove_database(room / name)
    fsync_directory(room)
    note.unlink()
    fsync_directory(room)
    shutil.rmtree(room / intention.new, ignore_errors=True)
    return True


def clean(room: Path) -> None:
    """Remove what an exchange left behind that did not get as far as its intention."""
    (room / _DRAFT).unlink(missing_ok=True)
    for left in (*room.glob(WORK_PREFIX + "*"), *room.glob(DAMAGED_PREFIX + "*.tmp")):
        shutil.rmtree(left, ignore_errors=True)


def _keep(path: Path, damaged: Path) -> None:
    """Take the old files out of the way: the WAL is moved, the database linked, so that its name is never missing."""
    damaged.mkdir(mode=0o700, exist_ok=True)
    wal, index = wal_of(path), database_files(path)[2]
    if wal.exists():
        wal.replace(damaged / wal.name)
    index.unlink(missing_ok=True)
    if path.exists() and not (damaged / path.name).exists():
        _link(path, damaged / path.name)
    fsync_directory(damaged)
    fsync_directory(path.parent)


def _link(path: Path, other: Path) -> None:
    try:
        other.hardlink_to(path)
    except OSError:
        # A file system without hard links: then its name is missing until the new one has it, which the intention
        # outlives.
        path.replace(other)
