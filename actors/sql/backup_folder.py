"""The folder of the backups: which there are, what each says of itself, and that a half one is never among them.

    backups/000012-20261201T0930/            MANIFEST.json, IDENTITY, core_writer/core.db, transcript_appender/…
    backups/000013-20261201T1130.tmp/        being made, or left by a process that was killed

A backup has the shape of a data directory. It is made under a name that nobody lists and renamed when its manifest is
durable; it is removed under such a name as well. The number orders the backups, whatever the clock does.

The manifest carries a hash of itself, so one that was cut short or changed is none. `core_seq` and `event_seq` are the
last changes of units and the last event that are in the backup; core is copied before the transcript, so every event
that core speaks of is there.

Core_writer's worker owns the folder. The transcript's worker writes its part into the one that is being made, and
reads the manifest before it, for what has not changed since.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from actors.errors import InvalidParams, NotFound, Quarantined
from actors.messages.backup import BackedUp, BackupFile
from actors.sql.backup_files import Pace, count_rows, hash_of, open_copy, require_whole
from actors.sql.database import file_bytes, fsync_directory, prepare_directory

FORMAT = 1
MANIFEST = "MANIFEST.json"
DRAFT = ".tmp"
IDENTITY = "IDENTITY"
_NAME = re.compile(r"([0-9]{6,12})-[0-9TZ]{1,32}")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a backup says of itself."""

    backup: str
    identity: str
    program: str
    created_at: str  # UTC, RFC 3339
    core_seq: int
    event_seq: int
    files: tuple[BackupFile, ...]
    linked: int = 0
    request_id: str | None = None
    format: int = FORMAT

    def rows(self, room: str, table: str) -> int:
        """Return how many rows of a table there are in all files of a room."""
        return sum(each.rows.get(table, 0) for each in self.files if each.path.startswith(f"{room}/"))

    @property
    def bytes(self) -> int:
        """Return the size of all files, those that it shares with other backups included."""
        return sum(each.bytes for each in self.files)


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    manifest: msgspec.Raw


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT


class Broken(NamedTuple):
    """A folder with the name of a backup that has no manifest to be believed, and why."""

    name: str
    reason: str


class BackupFolder:
    """All backups of a data directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ------------------------------------------------------------ what there is

    def names(self) -> list[str]:
        """Return the names of the finished backups, the newest first."""
        if not self.folder.is_dir():
            return []
        found = [path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=_number, reverse=True)

    def manifests(self) -> Iterator[Manifest | Broken]:
        """Yield what the backups say of themselves, the newest first."""
        for name in self.names():
            try:
                yield read_manifest(self.folder / name)
            except Quarantined as error:
                yield Broken(name, error.message)

    def newest(self) -> tuple[Path, Manifest] | None:
        """Return the newest backup that has a manifest."""
        for found in self.manifests():
            if isinstance(found, Manifest):
                return self.folder / found.backup, found
        return None

    def path_of(self, name: str) -> Path:
        """Return the folder of a finished backup; InvalidParams for what is no name, NotFound."""
        if not _NAME.fullmatch(name):
            raise InvalidParams(f"{name[:100]!r} is no name of a backup", hint="backup.list names them")
        if not (self.folder / name).is_dir():
            raise NotFound(f"there is no backup {name!r}", hint="backup.list names them")
        return self.folder / name

    def draft_of(self, name: str) -> Path:
        """Return the folder in which a backup is being made."""
        if not _NAME.fullmatch(name):
            raise InvalidParams(f"{name[:100]!r} is no name of a backup")
        return self.folder / f"{name}{DRAFT}"

    # ------------------------------------------------------------ making one

    def begin(self, now: datetime) -> str:
        """Make the folder of the next backup and return its name."""
        prepare_directory(self.folder)
        self.clean()
        number = max((_number(name) for name in self.names()), default=0) + 1
        name = f"{number:06}-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
        self.draft_of(name).mkdir(mode=0o700)
        fsync_directory(self.folder)
        return name

    def finish(self, manifest: Manifest) -> None:
        """Make a backup count whose files are durable. It is there on return, also after a loss of power."""
        draft = self.draft_of(manifest.backup)
        _write(draft / IDENTITY, manifest.identity.encode() + b"\n")
        raw = msgspec.json.encode(manifest)
        sealed = _Sealed(sha256=hashlib.sha256(raw).hexdigest(), manifest=msgspec.Raw(raw))
        _write(draft / MANIFEST, msgspec.json.encode(sealed))
        fsync_directory(draft)
        draft.rename(self.folder / manifest.backup)
        fsync_directory(self.folder)

    def drop(self, name: str) -> None:
        """Remove what was begun under this name."""
        shutil.rmtree(self.draft_of(name), ignore_errors=True)

    def clean(self) -> None:
        """Remove what was begun and never finished, or half removed."""
        if self.folder.is_dir():
            for left in self.folder.glob(f"*{DRAFT}"):
                shutil.rmtree(left, ignore_errors=True)

    def prune(self, kept: int) -> list[str]:
        """Remove all but the newest, as many as are to be kept; return the names of the removed.

        One that has no manifest to be believed counts for nothing and is left for somebody to look at.
        """
        removed = []
        good = [found.backup for found in self.manifests() if isinstance(found, Manifest)]
        for name in good[kept:]:
            path, aside = self.folder / name, self.folder / f"{name}{DRAFT}"
            path.rename(aside)
            fsync_directory(self.folder)
            shutil.rmtree(aside, ignore_errors=True)
            removed.append(name)
        return removed


# ---------------------------------------------------------------- one backup


def read_manifest(backup: Path) -> Manifest:
    """Read and check the manifest of a backup; raises Quarantined."""
    path = backup / MANIFEST
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        known = msgspec.json.decode(sealed.manifest, type=_Format).format
        intact = hashlib.sha256(sealed.manifest).hexdigest() == sealed.sha256
        manifest = msgspec.json.decode(sealed.manifest, type=Manifest) if intact and known <= FORMAT else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Quarantined(f"backup {backup.name!r} has no manifest that can be read: {error}") from error
    if known > FORMAT:
        raise Quarantined(
            f"backup {backup.name!r} has format {known}, this program knows up to {FORMAT}",
            hint="use the newer version of bulkhead that made it",
        )
    if manifest is None:
        raise Quarantined(f"the manifest of backup {backup.name!r} does not match its hash")
    if not all(_is_inside(each.path) for each in manifest.files):
        raise Quarantined(f"the manifest of backup {backup.name!r} names a file outside of it")
    return manifest


def manifest_of(
    name: str, identity: str, parts: tuple[BackedUp, ...], *, program: str, request_id: str | None, now: datetime
) -> Manifest:
    """Put the parts of the rooms together."""
    return Manifest(
        backup=name,
        identity=identity,
        program=program,
        created_at=now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        core_seq=max(part.core_seq for part in parts),
        event_seq=max(part.event_seq for part in parts),
        files=tuple(file for part in parts for file in part.files),
        linked=sum(part.linked for part in parts),
        request_id=request_id,
    )


def client_row(found: Manifest | Broken) -> dict[str, object]:
    """Return what a client is told of a backup."""
    if isinstance(found, Broken):
        return {"backup": found.name, "state": "damaged", "reason": found.reason}
    return {
        "backup": found.backup,
        "state": "finished",
        "created_at": found.created_at,
        "core_seq": found.core_seq,
        "event_seq": found.event_seq,
        "events": found.rows("transcript_appender", "events"),
        "units": found.rows("core_writer", "units"),
        "sessions": found.rows("core_writer", "sessions"),
        "files": len(found.files),
        "linked": found.linked,
        "bytes": found.bytes,
    }


def verify(backup: Path, pace: Pace) -> Manifest:
    """Look at every byte of a backup; raises Quarantined with what is wrong."""
    manifest = read_manifest(backup)
    for file in manifest.files:
        path = backup / file.path
        if file_bytes(path) != file.bytes:
            raise Quarantined(
                f"backup {backup.name!r} is damaged: {file.path} has {file_bytes(path)} bytes, not {file.bytes}"
            )
        if hash_of(path, pace) != file.sha256:
            raise Quarantined(f"backup {backup.name!r} is damaged: {file.path} does not match its hash")
        if file.kind == "database":
            _verify_database(backup, path, file, pace)
    return manifest


def _verify_database(backup: Path, path: Path, file: BackupFile, pace: Pace) -> None:
    with closing(open_copy(path, pace.check)) as connection:
        require_whole(connection, path)
        if (counted := count_rows(connection)) != file.rows:
            raise Quarantined(
                f"backup {backup.name!r} is damaged: {file.path} has {counted} rows, the manifest says {file.rows}"
            )


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1])


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and ".." not in parts and "\\" not in path and "\0" not in path


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
