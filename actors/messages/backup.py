"""What is said about backups: to both rooms of the truth (BackUp), and to core_writer, which keeps their folder."""

from typing import Literal

from actors.messages.base import Done, Message, Row, Rows, Struct

FileKind = Literal["database", "raw"]


class BackupFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a backup. `rows` per table, of a database; a raw one is kept as it was, damage included.

    `origin` tells whether the file it was copied from has changed since; only of what is not supposed to change.
    """

    path: str  # within the backup, with slashes
    kind: FileKind
    bytes: int
    sha256: str
    rows: dict[str, int] = {}
    schema: int = 0
    origin: str = ""


class BackedUp(Struct, frozen=True, kw_only=True):
    """The part of one room: its files, how many of them were taken over from the backup before, and up to where."""

    files: tuple[BackupFile, ...]
    linked: int = 0
    core_seq: int = 0
    event_seq: int = 0


class BackUp(Message, frozen=True, kw_only=True):
    """Copy the truth of the room as it is at one moment into a backup that was begun. Writes go on meanwhile."""

    answer = BackedUp
    backup: str

    def may_repeat(self) -> bool:
        """Say no: who makes the backup begins another one."""
        return False


class StopBackUp(Message, frozen=True, kw_only=True):
    """Let a copy that is being made fail now: the daemon goes down."""

    answer = Done


class BackupBegun(Struct, frozen=True, kw_only=True):
    """A backup that may be filled; or, as JSON, the one that this request has led to before."""

    backup: str
    finished: bytes | None = None


class BeginBackup(Message, frozen=True, kw_only=True):
    """Give the next backup its number and its folder. What earlier ones have left unfinished is removed."""

    answer = BackupBegun
    request_id: str | None = None


class FinishBackup(Message, frozen=True, kw_only=True):
    """Write the manifest of a backup and make it count; keep so many of the newest and remove the others."""

    answer = Row
    backup: str
    parts: tuple[BackedUp, ...]
    program: str  # the version that made it
    kept: int
    request_id: str | None = None

    def may_repeat(self) -> bool:
        """Say no: the first time may have taken effect."""
        return False


class DropBackup(Message, frozen=True, kw_only=True):
    """Remove a backup that was begun and will not be finished."""

    answer = Done
    backup: str


class ListBackups(Message, frozen=True, kw_only=True):
    """Return the finished backups, the newest first; `before` is the name that a page begins behind."""

    answer = Rows
    limit: int
    before: str | None = None


class VerifyBackup(Message, frozen=True, kw_only=True):
    """Look at every byte of a finished backup: hashes, SQLite's own checks, counts. NotFound, Quarantined."""

    answer = Row
    backup: str
